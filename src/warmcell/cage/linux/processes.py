"""Trees of processes, read from /proc, and how they are killed."""

from __future__ import annotations

import errno
import os
import time

from ..fast_imports import signal
from . import kernel_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Iterator, List

#: A process that exited or made itself unreadable. With any other error we cannot see, which ends the run.
_EXPECTED = {errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP}


def must_be_expected(error: OSError) -> None:
    if error.errno not in _EXPECTED:
        raise error


class _ExpectedErrors:
    """`with expected_errors:` ends the block at such an error. All others are raised."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        return isinstance(error, OSError) and error.errno in _EXPECTED


expected_errors = _ExpectedErrors()


def descendants(root: int) -> Iterator[int]:
    """All processes below `root`. Iterative: a guest can make chains longer than Python's stack."""
    pending = children(root)
    while pending:
        pid = pending.pop()
        yield pid
        pending += children(pid)


def below_init(init: int) -> Iterator[int]:
    """The same for an init, which has one thread and mostly no children."""
    for pid in _children(init, (init,)):
        yield pid
        yield from descendants(pid)


def children(pid: int) -> List[int]:
    with expected_errors:
        return _children(pid, os.listdir(f"/proc/{pid}/task"))
    return []


def _children(pid: int, threads: Iterable[object]) -> List[int]:
    found: List[int] = []
    with expected_errors:
        for thread in threads:
            found += map(int, kernel_files.read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def last_pid() -> int:
    """The last pid that was given out in this process's pid namespace, threads included."""
    return int(kernel_files.read_short("/proc/loadavg").split()[-1])


def thread_states(pid: int) -> str:
    """One letter per thread: R is running or runnable, D is busy in the kernel, S waits."""
    states = ""
    with expected_errors:
        for thread in os.listdir(f"/proc/{pid}/task"):
            states += kernel_files.read(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2].split(None, 1)[0]
    return states


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def kill_tree(root: int, itself: bool = True) -> None:
    """Stops all processes first, so that none forks while they are killed."""
    found = [*([root] if itself else []), *descendants(root)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in found:
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                continue


_BUSY_SECONDS = 0.5
_IDLE_SECONDS = 0.15  # enough for a writer to a full pipe whose reader waits for the processor
_LOOK_SECONDS = 0.005


class Leftovers:
    """Processes that a guest leaves running when it exits: they get a moment to finish, and are then killed.

    A shell does not wait for its process substitutions: `tee >(cat)` has exited while cat still has the last line to
    write. A reader of its pipe gets that line, and so do we. Processes that only wait, or are busy for longer, were
    left in the background on purpose, and do not delay the run. The owner calls `may_continue` with their pids from
    time to time.
    """

    def __init__(self) -> None:
        self.next_look = time.monotonic()
        self._until = self.next_look + _BUSY_SECONDS
        self._idle_until = self.next_look + _IDLE_SECONDS

    def note_activity(self) -> None:
        """One of them made a call that we answer: it was waiting for us only."""
        self._idle_until = time.monotonic() + _IDLE_SECONDS

    def may_continue(self, pids: Iterable[int]) -> bool:
        """Whether one of them is alive and its time is not over.

        A process that is about to exit is running or runnable, or waits for another one of them that is.
        """
        started = time.monotonic()
        is_there = is_busy = False
        for states in map(thread_states, pids):
            is_there = is_there or bool(states.strip("ZX"))
            is_busy = "R" in states or "D" in states
            if is_busy:
                break
        now = time.monotonic()
        if is_busy:
            self._idle_until = now + _IDLE_SECONDS
        # Looking at many takes a while: at most a tenth of our time.
        self.next_look = now + max(_LOOK_SECONDS, 10 * (now - started))
        return is_there and now < min(self._until, self._idle_until)
