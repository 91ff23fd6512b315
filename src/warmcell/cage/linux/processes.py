"""Trees of processes, read from /proc, and how they are killed."""

from __future__ import annotations

import errno
import os

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
    try:
        return _children(pid, os.listdir(f"/proc/{pid}/task"))
    except OSError as error:
        must_be_expected(error)
        return []


def _children(pid: int, threads: Iterable[object]) -> List[int]:
    found: List[int] = []
    try:
        for thread in threads:
            found += map(int, kernel_files.read(f"/proc/{pid}/task/{thread}/children").split())
    except OSError as error:
        must_be_expected(error)
    return found


def last_pid() -> int:
    """The last pid that was given out in this process's pid namespace, threads included."""
    return int(kernel_files.read_short("/proc/loadavg").split()[-1])


def thread_states(pid: int) -> str:
    """One letter per thread: R is running or runnable, D is busy in the kernel, S waits."""
    states = ""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            states += kernel_files.read(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2].split(None, 1)[0]
    except OSError as error:
        must_be_expected(error)
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
