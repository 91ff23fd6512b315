"""openat2(2), which Python's `os` does not have: one open that the kernel itself keeps beneath a directory."""

from __future__ import annotations

import errno
import os
import struct
import sys
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.cage.linux import foreign

#: The same number on every architecture that has the call.
_SYS_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
#: A rename elsewhere in the tree can make the kernel ask for another try.
_TRIES = 64


#: Flags, mode and how to resolve: `struct open_how`.
_HOW = struct.Struct("=QQQ")


@lru_cache(maxsize=1)
def _libc() -> foreign.CDLL:
    from warmcell.cage.linux import foreign  # what it needs of ctypes, by its half in C

    libc = foreign.CDLL(None, use_errno=True)
    libc.syscall.restype = foreign.c_long
    return libc


def open_beneath(dir_fd: int, path: str, flags: int, mode: int = 0) -> int:
    """Opens `path` under `dir_fd` without passing any symbolic link on the way; the caller owns the descriptor."""
    from warmcell.cage.linux.foreign import c_long, get_errno

    how = _HOW.pack(flags | os.O_CLOEXEC, mode, _BENEATH | _NO_MAGICLINKS | _NO_SYMLINKS)
    raw = os.fsencode(path)
    for _ in range(_TRIES):
        fd = int(_libc().syscall(c_long(_SYS_OPENAT2), c_long(dir_fd), raw, how, c_long(_HOW.size)))
        if fd >= 0:
            return fd
        if get_errno() not in (errno.EAGAIN, errno.EINTR):
            break
    code = get_errno()
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
