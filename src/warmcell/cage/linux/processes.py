"""Reads trees of processes from /proc, and kills them."""

from __future__ import annotations

import errno
import os
import select
import time

from ..fast_imports import signal
from . import kernel_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Iterator, List

#: The process exited or made itself unreadable. Any other error means that it cannot be monitored, and ends the run.
_EXPECTED = {errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP}


#: How often a process that should exit is checked for being stopped.
_CHECK_MS = 50


def must_be_expected(error: OSError) -> None:
    if error.errno not in _EXPECTED:
        raise error


class _ExpectedErrors:
    """`with expected_errors:` ends the block at an expected error. Others are raised."""

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
    """All processes below an init, which has one thread and usually no children."""
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
    """The last pid that was assigned in this process's pid namespace, including threads."""
    return int(kernel_files.read_short("/proc/loadavg").split()[-1])


def thread_states(pid: int) -> str:
    """One letter per thread: R runs or is runnable, D is busy in the kernel, S waits."""
    states = ""
    with expected_errors:
        for thread in os.listdir(f"/proc/{pid}/task"):
            states += kernel_files.read(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2].split(None, 1)[0]
    return states


def exits_unless_stopped(pid: int, pidfd: int, seconds: float) -> bool:
    """Wait for a process that exits by itself. False if it is stopped, or if it has not exited within `seconds`.

    One that waits for a processor is runnable, which on a loaded host may take seconds.
    """
    until = time.monotonic() + seconds
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    while not poll.poll(_CHECK_MS):
        if time.monotonic() > until or thread_states(pid).strip("RDSXZ"):
            return bool(poll.poll(0))
    return True


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def kill_tree(root: int, itself: bool = True) -> None:
    """Kill a tree. All processes are stopped first, so that none forks meanwhile."""
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
#: How much of a late look's delay counts: this process had no processor then, and they perhaps had none either.
_MOST_COUNTED = 10 * _LOOK_SECONDS


class Leftovers:
    """Processes that a guest leaves running when it exits get a moment to finish, and are then killed.

    A shell does not wait for its process substitutions: after `tee >(cat)` has exited, cat may still have to write the
    last line, which a reader of its pipe would get. Processes that only wait, or are busy for longer, were left in the
    background on purpose, and do not delay the run. The owner calls `may_continue` with their pids repeatedly.
    """

    def __init__(self) -> None:
        self.next_look = self._last_look = time.monotonic()
        #: How much of the time until the next look counts, and how long they had in all, and since they were busy.
        self._most_counted = _MOST_COUNTED
        self._waited = self._idle = 0.0

    def note_activity(self) -> None:
        """One of them made a call that we answer: it was waiting only for us."""
        self._idle = 0.0

    def may_continue(self, pids: Iterable[int]) -> bool:
        """Whether one of them is alive and has time left.

        A process that is about to exit runs or is runnable, or waits for another of them that does.
        """
        started = time.monotonic()
        is_alive = is_busy = False
        for states in map(thread_states, pids):
            is_alive = is_alive or bool(states.strip("ZX"))
            is_busy = "R" in states or "D" in states
            if is_busy:
                break
        now = time.monotonic()
        passed = min(started - self._last_look, self._most_counted)
        self._waited += passed
        self._idle = 0.0 if is_busy else self._idle + passed
        # Examining many processes takes a while; this limits it to a tenth of our time. It may also have been a stall.
        pause = min(max(_LOOK_SECONDS, 10 * (now - started)), _BUSY_SECONDS)
        self.next_look, self._last_look, self._most_counted = now + pause, started, pause + _MOST_COUNTED
        return is_alive and self._waited < _BUSY_SECONDS and self._idle < _IDLE_SECONDS
