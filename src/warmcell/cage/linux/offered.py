"""What the running kernel offers of all that a cage is made of, found by asking for it.

Calls are made with nonsense, which the kernel refuses before it does anything: nothing comes of the attempts.
"""

from __future__ import annotations

import errno

from . import foreign
from .syscalls import call

#: `move_mount` came with `open_tree`, and asks for privileges before it looks.
CALLS = (
    "unshare",
    "setns",
    "pidfd_send_signal",
    "open_tree",
    "pidfd_open",
    "openat2",
    "close_range",
    "mount_setattr",
)
#: Filters may look at flags too. No descriptor has the last number that there is.
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


def refusal_of_seccomp() -> int:
    """The error with which filters that notify, which a cage is locked with, are refused; 0: they are to be had."""
    action = foreign.c_uint32(_USER_NOTIFICATION)
    try:
        call("seccomp", _SECCOMP_GET_ACTION_AVAIL, 0, foreign.byref(action))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def landlock() -> int:
    """The version of Landlock; 0 when there is none."""
    try:
        return call("landlock_create_ruleset", None, 0, _LANDLOCK_VERSION)
    except OSError:
        return 0


def landlock_beside_all_else() -> int:
    """The version of Landlock where nothing else is missing either, else 0."""
    is_whole = all(map(has_call, CALLS)) and not refusal_of_seccomp()
    return landlock() if is_whole else 0
