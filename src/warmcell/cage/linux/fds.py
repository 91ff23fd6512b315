"""Descriptors: who closes them, and what the guest inherits, which is 0, 1 and 2."""

from __future__ import annotations

import os
import socket
from typing import Iterable, List, Tuple

from .syscalls import call

_CLOSE_RANGE_MAX = 0xFFFFFFFF
_CLOSE_RANGE_CLOEXEC = 4


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

    def give_all(self) -> None:
        self._held = []

    def __enter__(self) -> Owned:
        return self

    def __exit__(self, *_: object) -> None:
        close_all(self._held)


def close_all_but(keep: Iterable[int]) -> None:
    """Closes every descriptor above 2 that is not named."""
    start = 3
    for descriptor in sorted(set(keep)):
        if descriptor < 3:
            continue
        if descriptor > start:
            call("close_range", start, descriptor - 1, 0)
        start = descriptor + 1
    call("close_range", start, _CLOSE_RANGE_MAX, 0)


def close_on_exec() -> None:
    """Whatever is above 2 ends with the next exec."""
    call("close_range", 3, _CLOSE_RANGE_MAX, _CLOSE_RANGE_CLOEXEC)


def use_as_stdio(stdin: int, stdout: int, stderr: int) -> None:
    """Puts three descriptors at 0, 1 and 2. They must all be above 2."""
    for target, source in enumerate((stdin, stdout, stderr)):
        os.dup2(source, target, inheritable=True)


def open_descriptors() -> set[int]:
    """What is open now, without the descriptor that the listing itself needs."""
    listing = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return {int(name) for name in os.listdir(listing)} - {listing, _scan_descriptor(listing)}
    finally:
        os.close(listing)


def _scan_descriptor(listing: int) -> int:
    # os.listdir(fd) works on a duplicate, which the listing shows as well: the next free number.
    duplicate = os.dup(listing)
    os.close(duplicate)
    return duplicate
