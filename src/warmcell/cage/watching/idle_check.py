"""Whether any thread of a tree has run since the last look. Asking costs a tenth of a look, and most trees are idle."""

from __future__ import annotations

import os
import time

from ..linux import kernel_files
from ..linux.descriptors import close_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional

#: Asleep, stopped and zombie. A thread that leaves one of these states is scheduled, which schedstat counts.
_RESTING = frozenset("STtZ")
#: Trees with more threads get no open schedstat files: new cells need descriptors too.
_MOST_OPEN_FILES = 4


class IdleCheck:
    """Of one tree. What no running thread has changed is as it was; only socket queues can grow without one."""

    def __init__(self, proc: str, network: str) -> None:
        self._proc = proc
        self._network = network
        self._timeslices: Optional[Dict[str, int]] = None
        #: Open schedstat files of idle threads, with their content.
        self._open_files: Dict[int, bytes] = {}
        #: The latest time at which the tree can have become idle.
        self.since = 0.0

    def is_still_idle(self) -> bool:
        """Whether no thread has run since `is_idle` returned true. One system call for each thread instead of twenty.

        New threads need not be looked for: while none runs, none is started and no socket is made.
        """
        try:
            return bool(self._open_files) and all(
                os.pread(descriptor, 256, 0) == content for descriptor, content in self._open_files.items()
            )
        except OSError:  # it has ended
            return False

    def is_idle(self, pids: List[int]) -> bool:
        """Whether no thread has run since the last call. If false, look, and call it again before the next look."""
        now = time.monotonic()
        before, self._timeslices = self._timeslices, self._read_timeslices(pids)
        is_idle = self._timeslices is not None and self._timeslices == before
        self.close()
        if not is_idle:
            self.since = now
        elif self._timeslices is not None and len(self._timeslices) <= _MOST_OPEN_FILES:
            self._open_schedstats(self._timeslices)
        return is_idle

    def close(self) -> None:
        descriptors, self._open_files = self._open_files, {}
        close_all(descriptors)

    def _open_schedstats(self, timeslices: Dict[str, int]) -> None:
        """A thread whose file shows as many timeslices as when it was seen resting is still resting."""
        try:
            for base in timeslices:
                descriptor = os.open(f"{base}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
                self._open_files[descriptor] = b""
                self._open_files[descriptor] = os.pread(descriptor, 256, 0)
        except OSError:
            self.close()
        found = [content.split()[2:] for content in self._open_files.values()]
        if found != [[b"%d" % number] for number in timeslices.values()]:
            self.close()

    def _read_timeslices(self, pids: List[int]) -> Optional[Dict[str, int]]:
        """How often each thread was scheduled. None if one is running, or if it cannot be known."""
        try:
            if not pids or self._has_sockets():
                return None
            timeslices = {base: _timeslices(base) for pid in pids for base in self._threads(pid)}
        except (OSError, ValueError, IndexError):  # it has just ended, or the kernel has no schedstat
            return None
        return timeslices if all(timeslices.values()) else None

    def _has_sockets(self) -> bool:
        first = kernel_files.read_short(f"{self._network}/sockstat").split("\n", 1)[0]
        return first != "sockets: used 0"

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
