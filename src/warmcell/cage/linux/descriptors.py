"""Open descriptors and their owner, and sockets."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    import socket
    from typing import Iterable, List, Tuple, TypeVar

    S = TypeVar("S", bound=_socket.socket)
else:
    from ..fast_imports import socket


def close_all(descriptors: Iterable[int]) -> None:
    """Closes the descriptors, without those that are closed already or -1."""
    for descriptor in descriptors:
        try:
            os.close(descriptor)
        except OSError:
            pass


class OwnedDescriptors:
    """Descriptors that are closed when the block ends, except those that were given away.

    A fork in the block copies it: the child gives away what it keeps, or does not leave the block.
    """

    def __init__(self, *descriptors: int) -> None:
        self._held: List[int] = list(descriptors)

    def pipe(self) -> Tuple[int, int]:
        self._held += (ends := os.pipe2(os.O_CLOEXEC))
        return ends

    def socketpair(self) -> Tuple[int, int]:
        """Of packet sockets."""
        ours, theirs = make_pair(socket.SOCK_SEQPACKET)
        self._held += (ends := (ours.detach(), theirs.detach()))
        return ends

    def take(self, descriptor: int) -> int:
        self._held.append(descriptor)
        return descriptor

    def give(self, *descriptors: int) -> None:
        self._held = [descriptor for descriptor in self._held if descriptor not in descriptors]

    def close(self) -> None:
        close_all(self._held)
        self._held = []

    def __enter__(self) -> OwnedDescriptors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def blocking(made: S) -> S:
    """Makes a socket block, whatever `socket.setdefaulttimeout` says in this process.

    With a default timeout, Python makes the descriptor of every new socket object non-blocking. The flag belongs to the
    open file, so a process that the descriptor is handed to would get EAGAIN where it expects to wait. Every socket
    that we create or wrap comes from here, or its event loop makes it non-blocking.
    """
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
