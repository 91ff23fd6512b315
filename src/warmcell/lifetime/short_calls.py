"""System calls that never block, made without releasing the interpreter lock once many threads use them.

Python releases the lock around every system call. Where other threads wait for it, each release gives it to one of
them, and getting it back takes two context switches: far longer than closing a descriptor. A run closes a dozen.
"""

from __future__ import annotations

import os
import sys

from warmcell.cage.linux.descriptors import blocking, make_pair

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any
else:  # the C module, which loads faster
    import _socket as socket

_libc: Any = None


def keep_lock() -> None:
    """From now on. Not from the start, because loading the C library's functions takes longer than it saves one run."""
    global _libc
    if _libc is None and sys.platform == "linux" and sys.maxsize > 1 << 32:
        from warmcell.cage.linux import fast_ctypes

        _libc = fast_ctypes.PyDLL(None, use_errno=True)


def close(descriptor: int) -> None:
    if _libc is None:
        os.close(descriptor)
    elif _libc.close(descriptor) < 0:
        raise _last_error()


def make_pipe() -> tuple[int, int]:
    """The reading and the writing end, which children do not inherit."""
    if _libc is None:
        return os.pipe2(os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
    from warmcell.cage.linux import fast_ctypes

    ends = (fast_ctypes.c_int * 2)()
    if _libc.pipe2(ends, os.O_CLOEXEC) < 0:
        raise _last_error()
    return ends[0], ends[1]


def make_socket_pair(kind: socket.SocketKind) -> tuple[socket.socket, int]:
    """Two connected local sockets: ours, and the descriptor of the other one."""
    if _libc is None:
        ours, theirs = make_pair(kind)
        return ours, theirs.detach()
    from warmcell.cage.linux import fast_ctypes

    ends = (fast_ctypes.c_int * 2)()
    if _libc.socketpair(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC, 0, ends) < 0:
        raise _last_error()
    return blocking(socket.socket(socket.AF_UNIX, kind, 0, ends[0])), ends[1]


def _last_error() -> OSError:
    from warmcell.cage.linux import fast_ctypes

    number = fast_ctypes.get_errno()
    return OSError(number, os.strerror(number))
