"""System calls by name, through libc's `syscall`, for those without a function in Python."""

from __future__ import annotations

import os

from . import fast_ctypes
from .syscall_numbers import MACHINE as MACHINE
from .syscall_numbers import NUMBERS as NUMBERS

_libc = fast_ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = fast_ctypes.c_long


def call(name: str, *arguments: object) -> int:
    """Make a system call; raises OSError. Integers are passed as longs, bytes and buffers as pointers."""
    number = NUMBERS.get(name)
    if number is None:
        raise OSError(38, f"{name} is not known on {MACHINE}")
    words = [fast_ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    result = int(_libc.syscall(fast_ctypes.c_long(number), *words))
    if result < 0:
        errno = fast_ctypes.get_errno()
        raise OSError(errno, f"{name}: {os.strerror(errno)}")
    return result


_prctl = _libc.prctl
_prctl.argtypes = [fast_ctypes.c_int, *[fast_ctypes.c_ulong] * 4]


def prctl(option: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> int:
    result = int(_prctl(option, a, b, c, d))
    if result < 0:
        errno = fast_ctypes.get_errno()
        raise OSError(errno, f"prctl: {os.strerror(errno)}")
    return result


PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
