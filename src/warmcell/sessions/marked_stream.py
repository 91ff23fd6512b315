"""Output with marks in it, by which displays find their place between the lines. Pure.

A worker marks its output before it shows something: what stands before the mark was printed before it. Whoever forges
marks disorders its own output; none of it is held back for longer than its cell lasts, or beyond a bound.
"""

from __future__ import annotations

from collections.abc import Callable

_END = b"\3"
_MOST_DIGITS = 12
_MOST_HELD = 1 << 20


class MarkedStream:
    """One stream of bytes. `begin` is what every mark begins with; a number and an end follow."""

    def __init__(self, begin: bytes) -> None:
        self._begin = begin
        self._buffer = bytearray()
        self._reached = 0
        self._has_stopped = False

    def feed(self, data: bytes) -> bytes:
        """What may be told by now: all up to the next mark that nobody has asked for yet."""
        self._buffer += data
        if not self._buffer:
            return b""
        told = self._until(lambda number: number > self._reached)
        return told + self.rest() if len(self._buffer) > _MOST_HELD else told

    def reach(self, number: int) -> bytes:
        """What stands before that mark; all that there is, if the mark is not there."""
        self._reached = max(self._reached, number)
        told = self._until(lambda other: other >= number, takes_it=number)
        return told if self._has_stopped else told + self.rest()

    def rest(self) -> bytes:
        """Everything, without the marks."""
        if not self._buffer:
            return b""
        told = self._until(lambda number: False)
        told += bytes(self._buffer)  # the beginning of a mark that was never ended
        self._buffer.clear()
        return told

    def _until(self, is_stop: Callable[[int], bool], takes_it: int = -1) -> bytes:
        told = bytearray()
        self._has_stopped = False
        while True:
            place = self._buffer.find(self._begin)
            if place < 0:
                cut = len(self._buffer) - self._begun_length()
                told += self._buffer[:cut]
                del self._buffer[:cut]
                return bytes(told)
            told += self._buffer[:place]
            del self._buffer[:place]
            number, length = self._mark()
            if number is None and length == 0:
                return bytes(told)  # the rest of the mark is still to come
            if number is None:
                told += self._buffer[:length]
            elif is_stop(number):
                self._has_stopped = True
                if number == takes_it:
                    del self._buffer[:length]
                return bytes(told)
            del self._buffer[:length]

    def _begun_length(self) -> int:
        """How much of the buffer's end may be the beginning of a mark."""
        for length in range(min(len(self._begin) - 1, len(self._buffer)), 0, -1):
            if self._buffer.endswith(self._begin[:length]):
                return length
        return 0

    def _mark(self) -> tuple[int | None, int]:
        """The number of the mark at the buffer's beginning, and its length. What is none is passed on as text."""
        start = len(self._begin)
        end = self._buffer.find(_END, start, start + _MOST_DIGITS + 1)
        if end < 0:
            return None, 0 if len(self._buffer) <= start + _MOST_DIGITS else start
        digits = bytes(self._buffer[start:end])
        if not digits.isdigit():
            return None, start
        return int(digits), end + 1
