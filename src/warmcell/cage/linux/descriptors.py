"""Ownership of open descriptors, and blocking sockets."""

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
    """Close the descriptors; closed ones and -1 are ignored."""
    for descriptor in descriptors:
        try:
            os.close(descriptor)
        except OSError:
            pass


class closing_fd:  # noqa: N801  # as `contextlib.closing`
    """Closes a descriptor at the end of the block, as that of `core.light`, which the cage does not import.

    Not on the path of each run: `try` and `finally` are faster.
    """

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class OwnedDescriptors:
    """Descriptors that are closed when the block ends, except those passed to `give`.

    A fork in the block has a copy: the child must `give` what it keeps, or not leave the block.
    """

    def __init__(self, *descriptors: int) -> None:
        self._held: List[int] = list(descriptors)

    def pipe(self) -> Tuple[int, int]:
        self._held += (ends := os.pipe2(os.O_CLOEXEC))
        return ends

    def socketpair(self) -> Tuple[int, int]:
        """A pair of packet sockets."""
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


def blocking(channel: S) -> S:
    """Make a socket blocking in spite of `socket.setdefaulttimeout`.

    With a default timeout, Python makes the descriptor of every new socket object non-blocking. The flag belongs to the
    open file, so a process that receives the descriptor would get EAGAIN instead of blocking. Every socket that we
    create or wrap must pass through here, unless its event loop makes it non-blocking.
    """
    if channel.gettimeout() is not None:
        channel.setblocking(True)
    return channel


def make_pair(kind: int) -> Tuple[socket.socket, socket.socket]:
    """Two connected local sockets."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    return blocking(ours), blocking(theirs)


def from_descriptor(descriptor: int) -> socket.socket:
    """A socket object for an open descriptor, which it then owns."""
    return blocking(socket.socket(fileno=descriptor))
