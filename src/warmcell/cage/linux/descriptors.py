"""Open descriptors and their owner."""

from __future__ import annotations

import os

from ..fast_imports import socket
from ..sockets import make_pair

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, List, Tuple


def close_all(descriptors: Iterable[int]) -> None:
    """Closes those that are open; -1 stands for none."""
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
