"""openat2(2), which Python's `os` does not have: one open that the kernel itself keeps beneath a directory."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from functools import lru_cache

#: The same number on every architecture that has the call.
_SYS_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
#: A rename elsewhere in the tree can make the kernel ask for another try.
_TRIES = 64


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def open_beneath(dir_fd: int, path: str, flags: int, mode: int = 0) -> int:
    """Opens `path` under `dir_fd` without passing any symbolic link on the way; the caller owns the descriptor."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, _BENEATH | _NO_MAGICLINKS | _NO_SYMLINKS)
    raw = ctypes.c_char_p(os.fsencode(path))
    for _ in range(_TRIES):
        fd = int(
            _libc().syscall(
                ctypes.c_long(_SYS_OPENAT2), ctypes.c_long(dir_fd), raw, ctypes.byref(how), ctypes.c_size_t(24)
            )
        )
        if fd >= 0:
            return fd
        if ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
            break
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code), path)


@lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether this kernel has the call and lets us use it (an outer seccomp filter may answer EPERM or ENOSYS)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.close(open_beneath(here, ".", os.O_PATH | os.O_DIRECTORY))
    except OSError:
        return False
    finally:
        os.close(here)
    return True
