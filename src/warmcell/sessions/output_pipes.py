"""The output pipes of a session's worker, and the marks in its output that give the positions of displays.

A worker marks its output before it shows something: what stands before the mark was printed before it. A guest that
forges marks disorders its own output; none of it is held back for longer than its cell lasts, or beyond a bound.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from warmcell.runner.streams import unread_bytes

#: Called with the stream ("stdout" or "stderr"), its data, and whether that is its end in this cell.
Add = Callable[[str, bytes, bool], None]
_CHUNK = 1 << 16
_END = b"\3"
_MOST_DIGITS = 12
_MOST_HELD = 1 << 20


class MarkedStream:
    """One stream of bytes. A mark is `begin`, a number and an end byte."""

    def __init__(self, begin: bytes) -> None:
        self._begin = begin
        self._buffer = bytearray()
        self._reached = 0
        self._has_stopped = False

    def feed(self, data: bytes) -> bytes:
        """Adds data; returns the output up to the next mark that was not reached yet."""
        self._buffer += data
        if not self._buffer:
            return b""
        output = self._until(lambda number: number > self._reached)
        return output + self.rest() if len(self._buffer) > _MOST_HELD else output

    def reach(self, number: int) -> bytes:
        """The output before that mark; all output if the mark is missing."""
        self._reached = max(self._reached, number)
        output = self._until(lambda other: other >= number, takes_it=number)
        return output if self._has_stopped else output + self.rest()

    def rest(self) -> bytes:
        """Take all output in the buffer, without the marks."""
        if not self._buffer:
            return b""
        output = self._until(lambda number: False)
        output += bytes(self._buffer)  # an incomplete mark
        self._buffer.clear()
        return output

    def _until(self, is_stop: Callable[[int], bool], takes_it: int = -1) -> bytes:
        output = bytearray()
        self._has_stopped = False
        while True:
            place = self._buffer.find(self._begin)
            if place < 0:
                cut = len(self._buffer) - self._partial_mark_length()
                output += self._buffer[:cut]
                del self._buffer[:cut]
                return bytes(output)
            output += self._buffer[:place]
            del self._buffer[:place]
            number, length = self._mark()
            if number is None and length == 0:
                return bytes(output)  # the rest of the mark has not arrived
            if number is None:
                output += self._buffer[:length]
            elif is_stop(number):
                self._has_stopped = True
                if number == takes_it:
                    del self._buffer[:length]
                return bytes(output)
            del self._buffer[:length]

    def _partial_mark_length(self) -> int:
        """How many bytes at the end of the buffer may be the start of a mark."""
        for length in range(min(len(self._begin) - 1, len(self._buffer)), 0, -1):
            if self._buffer.endswith(self._begin[:length]):
                return length
        return 0

    def _mark(self) -> tuple[int | None, int]:
        """The number and length of the mark at the start of the buffer. Anything else is passed on as output."""
        start = len(self._begin)
        end = self._buffer.find(_END, start, start + _MOST_DIGITS + 1)
        if end < 0:
            return None, 0 if len(self._buffer) <= start + _MOST_DIGITS else start
        digits = bytes(self._buffer[start:end])
        if not digits.isdigit():
            return None, start
        return int(digits), end + 1


class OutputPipes:
    """The pipes of one worker. `on_closed` is called with the descriptor of a stream that has ended."""

    def __init__(self, stdout: int, stderr: int, mark: bytes, on_closed: Callable[[int], None]) -> None:
        self._names = {stdout: "stdout", stderr: "stderr"}
        self._streams = {descriptor: MarkedStream(mark) for descriptor in self._names}
        self._open = list(self._names)
        self._on_closed = on_closed
        self._poll = select.poll()
        #: Whether there was output since `begin`.
        self._is_any = False
        for descriptor in self._names:
            os.set_blocking(descriptor, False)
            self._poll.register(descriptor, select.POLLIN)

    def begin(self) -> None:
        """Called at the start of each cell."""
        self._is_any = False

    def read_output(self, descriptor: int, add: Add) -> int:
        """Reads once; returns the number of bytes."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return 0
        self._is_any = True
        if not data:
            self._poll.unregister(descriptor)
            self._open.remove(descriptor)
            self._on_closed(descriptor)
        if output := self._streams[descriptor].feed(data):
            add(self._names[descriptor], output, False)
        return len(data)

    def drain(self, add: Add) -> None:
        """Reads what the pipes hold now, without waiting for a process that keeps writing."""
        if not self._poll.poll(0):
            return
        for descriptor in tuple(self._open):
            waiting = unread_bytes(descriptor)
            while waiting > 0:
                waiting -= self.read_output(descriptor, add) or waiting

    def release(self, part: Callable[[MarkedStream], bytes], add: Add, *, is_last: bool = False) -> None:
        """Passes on the output of each stream that `part` releases."""
        if not self._is_any:
            return
        for descriptor, stream in self._streams.items():
            output = part(stream)
            if output or is_last:
                add(self._names[descriptor], output, is_last)
