"""Probes which of the features that a cage needs the running kernel supports.

Calls are made with invalid arguments, which the kernel rejects without any effect.
"""

from __future__ import annotations

import errno

from . import fast_ctypes
from .syscalls import call

#: Without `move_mount`, which is as old as `open_tree` and checks privileges before its arguments.
CALLS = ("unshare", "setns", "pidfd_send_signal", "open_tree", "pidfd_open", "openat2", "close_range", "mount_setattr")
#: An outer filter may examine flags too, so they are valid here. The last number is never an open descriptor.
_HARMLESS = {"close_range": (0xFFFFFFFF, 0xFFFFFFFF, 0)}
_GONE = (errno.ENOSYS, errno.EPERM, errno.EACCES)
_LANDLOCK_VERSION = 1
_SECCOMP_GET_ACTION_AVAIL, _USER_NOTIFICATION = 2, 0x7FC00000


def has_call(name: str) -> bool:
    try:
        call(name, *_HARMLESS.get(name, (-1, -1, -1, -1, -1)))
    except OSError as error:
        return error.errno not in _GONE
    return True


def seccomp_errno() -> int:
    """0 if seccomp filters with user notification, which cages need, are supported, else the error."""
    action = fast_ctypes.c_uint32(_USER_NOTIFICATION)
    try:
        call("seccomp", _SECCOMP_GET_ACTION_AVAIL, 0, fast_ctypes.byref(action))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def landlock_version() -> int:
    """The version of the Landlock ABI; 0 if it is not available."""
    try:
        return call("landlock_create_ruleset", None, 0, _LANDLOCK_VERSION)
    except OSError:
        return 0


def landlock_version_if_complete() -> int:
    """The version of the Landlock ABI if everything else is supported too, else 0."""
    is_complete = all(map(has_call, CALLS)) and not seccomp_errno()
    return landlock_version() if is_complete else 0
