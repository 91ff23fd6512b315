"""openat2(2), which Python's `os` lacks: an open that the kernel confines beneath a directory."""

from __future__ import annotations

import errno
import os
import struct
import sys
from functools import lru_cache

from warmcell.core.light import closing_fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.cage.linux import fast_ctypes

#: The same number on every architecture that has the call.
_SYS_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH, _IN_ROOT = 0x02, 0x04, 0x08, 0x10
#: The kernel returns EAGAIN if a concurrent rename could have moved the path out.
_TRIES = 64


#: Flags, mode and how to resolve: `struct open_how`.
_HOW = struct.Struct("=QQQ")


@lru_cache(maxsize=1)
def _libc() -> fast_ctypes.CDLL:
    from warmcell.cage.linux import fast_ctypes  # faster to import than ctypes

    libc = fast_ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = fast_ctypes.c_long
    return libc


def open_beneath(dir_fd: int, path: str, flags: int) -> int:
    """Open `path` beneath `dir_fd` without following symbolic links; the caller owns the descriptor."""
    return _open(dir_fd, path, flags, _BENEATH | _NO_MAGICLINKS | _NO_SYMLINKS)


def open_in_root(dir_fd: int, path: str | bytes, flags: int) -> int:
    """Open `path` as if `dir_fd` were the root directory: links are followed, and none leads out."""
    return _open(dir_fd, path, flags, _IN_ROOT | _NO_MAGICLINKS)


def open_within(dir_fd: int, path: str, flags: int) -> int:
    """Open `path` beneath `dir_fd`. The kernel follows 40 links at most; one that leads out raises EXDEV."""
    return _open(dir_fd, path, flags, _BENEATH | _NO_MAGICLINKS)


def _open(dir_fd: int, path: str | bytes, flags: int, resolve: int) -> int:
    from warmcell.cage.linux.fast_ctypes import c_long, get_errno

    how = _HOW.pack(flags | os.O_CLOEXEC, 0, resolve)
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
    """Whether openat2 works here. Old kernels lack it, and an outer seccomp filter may refuse it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        with closing_fd(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as here:
            os.close(open_beneath(here, ".", os.O_PATH | os.O_DIRECTORY))
    except OSError:
        return False
    return True
