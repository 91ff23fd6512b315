"""Checks whether any thread of a tree has run since the last look. Most trees are idle, and this costs a tenth."""

from __future__ import annotations

import os
import stat
import time

from ..linux import kernel_files
from ..linux.descriptors import close_all
from .kernel_memory import unix_sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional, Set

#: Asleep, stopped and zombie. A thread that leaves one of these states is scheduled, which schedstat counts.
_RESTING = frozenset("STtZ")
#: For trees with more threads and sockets no files are kept open: new cells need descriptors too.
_MOST_OPEN_FILES = 4
#: Trees with more Unix sockets, or more descriptors to search for them, count as busy: checking would cost too much.
_MOST_SOCKETS, _MOST_DESCRIPTORS = 16, 256
#: The kernel returns these files at once.
_SHORT = 4096


class IdleCheck:
    """Checks one tree. If no thread has run, nothing has changed except socket queues.

    The number of descriptors in queues of Unix sockets is compared too, since a process outside may have such a socket.
    Their bytes are not: every queue counts as full. A tree with other sockets is never idle.
    """

    def __init__(self, proc: str, network: str) -> None:
        self._proc, self._network = proc, network
        self._timeslices: Optional[Dict[str, int]] = None
        #: The fdinfo of each socket, by path. None: unknown.
        self._sockets: Optional[Dict[str, bytes]] = None
        #: Open files of idle threads and of sockets, with their content.
        self._open_files: Dict[int, bytes] = {}
        #: The tree has been idle since this time, or longer.
        self.since = 0.0

    def is_still_idle(self) -> bool:
        """Whether no thread has run since `is_idle` returned true. One system call per thread instead of twenty.

        New threads and sockets need not be searched for: while no thread runs, none is created.
        """
        try:
            return bool(self._open_files) and all(
                os.pread(descriptor, _SHORT, 0) == content for descriptor, content in self._open_files.items()
            )
        except OSError:  # a thread has ended
            return False

    def is_idle(self, pids: List[int]) -> bool:
        """Whether no thread has run since the last call. If false, measure, and call it before the next measurement."""
        now = time.monotonic()
        before = (self._timeslices, self._sockets)
        self._timeslices = timeslices = self._read_timeslices(pids)
        self._sockets = sockets = self._read_sockets(pids) if timeslices is not None else None
        self.close()
        if timeslices is None or sockets is None or (timeslices, sockets) != before:
            self.since = now
            return False
        self._open_all(timeslices, sockets)
        return True

    def close(self) -> None:
        descriptors, self._open_files = self._open_files, {}
        close_all(descriptors)

    def _open_all(self, timeslices: Dict[str, int], sockets: Dict[str, bytes]) -> None:
        """Keep files open for `is_still_idle`. A thread with the same number of timeslices has not run."""
        if len(timeslices) + len(sockets) > _MOST_OPEN_FILES:
            return
        try:
            for path in (*(f"{base}/schedstat" for base in timeslices), *sockets):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._open_files[descriptor] = b""
                self._open_files[descriptor] = os.pread(descriptor, _SHORT, 0)
        except OSError:
            self.close()
        found = list(self._open_files.values())
        slices = [content.split()[2:] for content in found[: len(timeslices)]]
        is_same = found[len(timeslices) :] == list(sockets.values())
        if not is_same or slices != [[b"%d" % number] for number in timeslices.values()]:
            self.close()

    def _read_timeslices(self, pids: List[int]) -> Optional[Dict[str, int]]:
        """How often each thread was scheduled. None if one is running, or if that cannot be determined."""
        try:
            if not pids:
                return None
            timeslices = {base: _timeslices(base) for pid in pids for base in self._threads(pid)}
        except (OSError, ValueError, IndexError):  # a thread has just ended, or the kernel has no schedstat
            return None
        return timeslices if all(timeslices.values()) else None

    def _read_sockets(self, pids: List[int]) -> Optional[Dict[str, bytes]]:
        """The fdinfo of each socket of the network. None if one is in flight or not a Unix socket, or for too many."""
        try:
            first = kernel_files.read_short(f"{self._network}/sockstat").split("\n", 1)[0]
            used = int(first.rpartition(" ")[2])
            if used > _MOST_SOCKETS:
                return None
            wanted = set(unix_sockets(self._network) if used else ())
            places = self._find_sockets(pids, wanted) if len(wanted) == used else {}
            if len(places) != used:
                return None
            return {path: kernel_files.read_short(path).encode() for path in places.values()}
        except (OSError, ValueError):  # a process has just ended
            return None

    def _find_sockets(self, pids: List[int], wanted: Set[int]) -> Dict[int, str]:
        """Paths by inode. Gives up if the processes have too many descriptors."""
        places: Dict[int, str] = {}
        seen = 0
        for base in (f"{self._proc}/{pid}" for pid in pids):
            for name in os.listdir(f"{base}/fd") if len(places) < len(wanted) else ():
                seen += 1
                if seen > _MOST_DESCRIPTORS:
                    return places
                status = os.stat(f"{base}/fd/{name}")
                if status.st_ino in wanted and stat.S_ISSOCK(status.st_mode):
                    places[status.st_ino] = f"{base}/fdinfo/{name}"
        return places

    def _threads(self, pid: int) -> Iterator[str]:
        base = f"{self._proc}/{pid}"
        fields = _fields(base)
        if fields[17] != "1":
            for thread in os.listdir(f"{base}/task"):
                yield f"{base}/task/{thread}"
        else:
            yield base


def _timeslices(base: str) -> int:
    """The number of timeslices; 0 if it runs. The state is read last: a thread that runs later gets another one."""
    timeslices = int(kernel_files.read_short(f"{base}/schedstat").split()[2])
    return timeslices if _fields(base)[0] in _RESTING else 0


def _fields(base: str) -> List[str]:
    """The fields of `stat` from the state on."""
    return kernel_files.read_short(f"{base}/stat").rpartition(")")[2].split()
