"""Sockets that block, whatever `socket.setdefaulttimeout` says in this process.

With a default timeout, Python makes the descriptor of every new socket object non-blocking. The flag belongs to the
open file, so a process that the descriptor is handed to would get EAGAIN where it expects to wait. Every socket that we
create or wrap comes from here, or its event loop makes it non-blocking.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    import socket
    from typing import Tuple, TypeVar

    S = TypeVar("S", bound=_socket.socket)
else:
    import _socket as socket


def blocking(made: S) -> S:
    if made.gettimeout() is not None:
        made.setblocking(True)
    return made


def make_pair(kind: int) -> Tuple[socket.socket, socket.socket]:
    """Two connected local sockets."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    return blocking(ours), blocking(theirs)


def from_descriptor(descriptor: int) -> socket.socket:
    """The socket that an open descriptor is. It then belongs to the returned object."""
    return blocking(socket.socket(fileno=descriptor))
