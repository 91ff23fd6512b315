"""How long one look may take: a guest that makes itself too large to look at is over its limit."""

from __future__ import annotations

import os
import time

from ..linux import kernel_files
from ..linux.processes import must_be_expected

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

_CHUNK = 1 << 16


_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


def next_look_after(spent: Spent) -> float:
    """When to look again at what is costly to look at: it takes a tenth of the time, and more only from the largest."""
    return time.monotonic() + min(max(_SHORTEST_PAUSE, 10 * spent.seconds()), _LONGEST_PAUSE)


def _waited_for_a_turn() -> float:
    """Seconds that this process was ready to run and did not. Nothing where the kernel keeps no such account."""
    try:
        return int(kernel_files.read("/proc/self/schedstat").split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class Spent:
    """How long a look takes us, from now on. Waiting for our turn on a processor is no part of it: else the next look
    would come the later, the busier the host is, and a guest that keeps it busy would have that time to itself."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._waited = _waited_for_a_turn()

    def seconds(self) -> float:
        return max(0.0, time.monotonic() - self._started - (_waited_for_a_turn() - self._waited))


class TooLong(Exception):
    """There is more to see than anybody could look at in time."""


class Patience:
    """Of one look. By the processor, and by the clock, since one can be held up.

    Time in which we only wait for our turn on a processor is on neither: a busy host is nothing that a guest did.
    """

    def __init__(self, processor: float, clock: float) -> None:
        self._processor = time.process_time() + processor
        self._waited = _waited_for_a_turn()
        self._clock = time.monotonic() + clock

    def check(self) -> None:
        if time.process_time() > self._processor:
            raise TooLong
        if time.monotonic() > self._clock and time.monotonic() - self._clock > _waited_for_a_turn() - self._waited:
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
