"""Whether any thread of a tree has run since the last look. Asking costs a tenth of a look, and most trees are idle."""

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
#: Trees with more threads and sockets get no open files: new cells need descriptors too.
_MOST_OPEN_FILES = 4
#: Trees with more Unix sockets, or more descriptors to search for them, are not idle: asking would cost too much.
_MOST_SOCKETS, _MOST_DESCRIPTORS = 16, 256
#: The kernel returns these files whole.
_SHORT = 4096


class IdleCheck:
    """Of one tree. What no running thread has changed is as it was, except socket queues.

    Those of Unix sockets are compared as well, for a process outside may have been given one: the kernel shows how many
    descriptors are in them. Their bytes need not be: a full queue is what each socket is taken to have. A tree with
    other sockets is never idle.
    """

    def __init__(self, proc: str, network: str) -> None:
        self._proc, self._network = proc, network
        self._timeslices: Optional[Dict[str, int]] = None
        #: By path, what the kernel shows of each socket. None: not known.
        self._sockets: Optional[Dict[str, bytes]] = None
        #: Open files of idle threads and of sockets, with their content.
        self._open_files: Dict[int, bytes] = {}
        #: The latest time at which the tree can have become idle.
        self.since = 0.0

    def is_still_idle(self) -> bool:
        """Whether no thread has run since `is_idle` returned true. One system call for each thread instead of twenty.

        New threads need not be looked for: while none runs, none is started and no socket is made.
        """
        try:
            return bool(self._open_files) and all(
                os.pread(descriptor, _SHORT, 0) == content for descriptor, content in self._open_files.items()
            )
        except OSError:  # it has ended
            return False

    def is_idle(self, pids: List[int]) -> bool:
        """Whether no thread has run since the last call. If false, look, and call it again before the next look."""
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
        """A thread whose file shows as many timeslices as when it was seen resting is still resting."""
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
        """How often each thread was scheduled. None if one is running, or if it cannot be known."""
        try:
            if not pids:
                return None
            timeslices = {base: _timeslices(base) for pid in pids for base in self._threads(pid)}
        except (OSError, ValueError, IndexError):  # it has just ended, or the kernel has no schedstat
            return None
        return timeslices if all(timeslices.values()) else None

    def _read_sockets(self, pids: List[int]) -> Optional[Dict[str, bytes]]:
        """Each socket of the network, once. None if there are others than Unix sockets, too many, or one in flight."""
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
        """By inode. Not all of them if the processes have so many descriptors that this would take long."""
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
    """0 if it is running or runnable. The state is read last: a thread that runs afterwards gets another timeslice."""
    timeslices = int(kernel_files.read_short(f"{base}/schedstat").split()[2])
    return timeslices if _fields(base)[0] in _RESTING else 0


def _fields(base: str) -> List[str]:
    """From the state on."""
    return kernel_files.read_short(f"{base}/stat").rpartition(")")[2].split()
