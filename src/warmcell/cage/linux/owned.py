"""Descriptors that are open, and who closes them."""

from __future__ import annotations

import os

from ..light import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, List, Tuple


def close_all(descriptors: Iterable[int]) -> None:
    """Those that are open; -1 stands for none."""
    for descriptor in descriptors:
        try:
            os.close(descriptor)
        except OSError:
            pass


class Owned:
    """Closed when the block ends, however it ends, but for those that were given away.

    A fork inside the block copies it: the child gives away what it keeps, or does not leave the block.
    """

    def __init__(self, *descriptors: int) -> None:
        self._held: List[int] = list(descriptors)

    def pipe(self) -> Tuple[int, int]:
        self._held += (ends := os.pipe2(os.O_CLOEXEC))
        return ends

    def socketpair(self) -> Tuple[int, int]:
        """Of packets."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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

    def __enter__(self) -> Owned:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
