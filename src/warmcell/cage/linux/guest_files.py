"""Resolves a guest's paths and descriptors from outside, and makes calls on its files on its behalf.

Events and locks belong to inodes, and read-only inodes are shared: a watch on one reveals what the host and other runs
open, and a lock on one blocks them. So guests get them only on files that they may write, which are their own. The
check and the call are both made here, so that nothing can change in between.
"""

from __future__ import annotations

import fcntl
import os
import stat

from ..fast_imports import signal
from . import fast_ctypes
from .descriptors import closing_fd
from .syscalls import call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Sequence

_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 2, 16
_EACCES, _EOPNOTSUPP = 13, 95
_IN_DONT_FOLLOW = 0x02000000
_LOCK_UN = 8
_MOST_SECONDS = 0.05


class TimeLimit:
    """In the block, a call that blocks is interrupted after a while.

    By a signal with a handler, repeated in case it comes before the call. Looking at a guest's descriptors in /proc may
    close a socket as well: the kernel has the file open for a moment, in which the guest may close it.
    """

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, lambda number, frame: None)
        signal.setitimer(signal.ITIMER_REAL, _MOST_SECONDS, _MOST_SECONDS)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


class WithoutTimeLimit:
    """In the block, the calls of a `TimeLimit` around it are not interrupted.

    For files of the host: a file system of a slow server (FUSE) may fail each call that is interrupted.
    """

    __slots__ = ("_left",)

    def __enter__(self) -> None:
        self._left = signal.setitimer(signal.ITIMER_REAL, 0)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, *self._left)


class closing_copy:  # noqa: N801  # as `closing_fd`
    """Closes a copy of a guest's descriptor at the end of the block.

    If the guest has closed its own by then, closing a socket may wait for its peer for hours (SO_LINGER).
    """

    __slots__ = ("_copy",)

    def __init__(self, copy: int) -> None:
        self._copy = copy

    def __enter__(self) -> int:
        return self._copy

    def __exit__(self, *_: object) -> None:
        with TimeLimit():
            os.close(self._copy)


def open_inside(thread: int, path: bytes, follows: bool = True) -> int:
    """Open a path as the guest would: links are resolved in its root and cannot lead out of it."""
    base = os.readlink(b"/proc/%d/cwd" % thread)
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follows else os.O_NOFOLLOW)
    how = (fast_ctypes.c_uint64 * 3)(flags, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    with closing_fd(os.open(b"/proc/%d/root" % thread, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
        return call("openat2", root, os.path.join(base, path), how, 24)


def copy_of(thread: int, descriptor: int) -> int:
    """Duplicate a guest's descriptor."""
    with closing_fd(call("pidfd_open", _process_of(thread), 0)) as pidfd:
        return call("pidfd_getfd", pidfd, descriptor, 0)


def _process_of(thread: int) -> int:
    with open(f"/proc/{thread}/status", "rb") as file:  # its name, which a guest chooses, may be any bytes
        return next(int(line.split()[1]) for line in file if line.startswith(b"Tgid:"))


def add_watch(thread: int, descriptor: int, path: bytes, mask: int, host_id: int) -> int:
    """Call inotify_add_watch() for the guest, with its rights. Returns the result, or a negative errno."""
    try:
        with closing_copy(copy_of(thread, descriptor)) as notifier, _AsUser(host_id):
            return _add_watch(thread, notifier, path, mask)
    except OSError as error:
        return -(error.errno or _EACCES)


def _add_watch(thread: int, notifier: int, path: bytes, mask: int) -> int:
    with closing_fd(open_inside(thread, path, follows=not mask & _IN_DONT_FOLLOW)) as target:
        if not is_on_writable_mount(target):
            return -_EACCES
        return call("inotify_add_watch", notifier, b"/proc/self/fd/%d" % target, mask & ~_IN_DONT_FOLLOW)


def is_on_writable_mount(file: int) -> bool:
    """Whether the mount is writable. False for devices, which are shared between all their nodes."""
    mode = os.fstat(file).st_mode
    is_device = stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
    return not is_device and not os.fstatvfs(file).f_flag & os.ST_RDONLY


def is_writable_by_rule(places: Sequence[str], file: int) -> bool:
    """For guests without a mount namespace: whether it is open for writing, or in a writable directory."""
    if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
        return True
    path = os.readlink(f"/proc/self/fd/{file}")
    return any((path + "/").startswith(place.rstrip("/") + "/") for place in places)


def may_lock(thread: int, descriptor: int, operation: int, is_own: Callable[[int], bool]) -> int:
    """0 if the guest's flock() may continue, else its errno, as from a file system without locks.

    The guest makes the call itself, because it may block and be interrupted. A guest that changes the descriptor in
    between can lock a file that is not its own.
    """
    if operation & _LOCK_UN:
        return 0
    try:
        with closing_copy(copy_of(thread, descriptor)) as file:
            return 0 if is_own(file) else _EOPNOTSUPP
    except OSError as error:  # also of its file system: raised, it would end the manager and all other guests
        return error.errno or _EACCES


class _AsUser:
    """In the block, we have another user's rights to files. Only for root; `host_id` is 0 for ordinary users."""

    def __init__(self, host_id: int) -> None:
        self._host_id = host_id

    def __enter__(self) -> None:
        try:
            self._become(("setfsgid", "setfsuid"), self._host_id)
        except OSError:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._become(("setfsuid", "setfsgid"), 0)

    def _become(self, calls: Sequence[str], user: int) -> None:
        for name in calls if self._host_id else ():
            call(name, user)
