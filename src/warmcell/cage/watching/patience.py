"""How long one look may take: a guest that makes itself too large to look at is over its limit."""

from __future__ import annotations

import os
import time
from typing import Iterator

from ..linux.processes import must_be_expected

_CHUNK = 1 << 16


_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


def pause_after(started: float) -> float:
    """When to look again at what is costly to look at: it takes a tenth of the time, and more only from the largest."""
    now = time.monotonic()
    return now + min(max(_SHORTEST_PAUSE, 10 * (now - started)), _LONGEST_PAUSE)


class TooLong(Exception):
    """There is more to see than anybody could look at in time."""


class Patience:
    """Of one look. By the processor, whose time a busy host does not use up, and by the clock: one can be held up."""

    def __init__(self, processor: float, clock: float) -> None:
        self._processor = time.process_time() + processor
        self._clock = time.monotonic() + clock

    def check(self) -> None:
        if time.process_time() > self._processor or time.monotonic() > self._clock:
            raise TooLong

    def read(self, path: str) -> Iterator[bytes]:
        """A file of the kernel's in pieces of whole lines, for as long as there is time. Nothing: it is gone."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            must_be_expected(error)
            return
        rest = b""
        try:
            while True:
                self.check()
                try:
                    piece = os.read(descriptor, _CHUNK)
                except OSError as error:
                    must_be_expected(error)
                    piece = b""
                if not piece:
                    break
                lines, newline, after = (rest + piece).rpartition(b"\n")
                rest = after
                if newline:
                    yield lines + newline
        finally:
            os.close(descriptor)
