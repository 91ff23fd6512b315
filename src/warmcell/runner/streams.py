"""A run's streams: output is read to its end and kept up to a cap; input is written as fast as the guest reads."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable

from warmcell.core.light import suppress
from warmcell.core.records import dataclass, field

CHUNK = 1 << 16
_F_GETPIPE_SZ = 1032


@dataclass(slots=True)
class Capture:
    """One output stream: keeps the first `cap` bytes, and reads and counts the rest, so that guests do not block."""

    cap: int
    kept: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self.cap - len(self.kept)
        if room > 0:
            self.kept += chunk[:room]

    def read(self, descriptor: int) -> bool | None:
        """Reads what is there now. False at the end of the stream. None if there is nothing yet."""
        try:
            chunk = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return None
        self.add(chunk)
        return bool(chunk)

    @property
    def is_over(self) -> bool:
        return self.total > self.cap

    def finish(self) -> None:
        """Called at the end of the stream."""


def unread_bytes(pipe: int) -> int:
    """How much a pipe holds."""
    import fcntl
    import termios

    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def pipe_capacity(pipe: int) -> int:
    import fcntl

    return fcntl.fcntl(pipe, _F_GETPIPE_SZ)


class Feed:
    """What the guest reads: bytes, or a descriptor whose data is forwarded.

    `sink` is our end of the guest's input, `close_sink` closes it. Call `handle` with descriptors that are ready.
    """

    def __init__(self, source: bytes | int, sink: int, close_sink: Callable[[], None], poll: select.poll) -> None:
        self._source = source if isinstance(source, int) else -1
        self._rest = memoryview(b"" if isinstance(source, int) else source)
        self._sink, self._close_sink, self._poll = sink, close_sink, poll
        self._is_over = False
        #: Seconds that the guest may have waited for us to write.
        self.held_up = 0.0
        self._last_write = 0.0
        if self._rest:
            poll.register(sink, select.POLLOUT)
        elif self._source >= 0:
            poll.register(self._source, select.POLLIN)
            poll.register(sink, 0)  # reports only that the guest closed its end
        else:
            close_sink()

    def handle(self, descriptor: int) -> None:
        if self._is_over:  # source and sink were both ready, and the other one was at its end
            return
        if descriptor == self._source:
            self._draw()
        else:
            self._write()

    def _draw(self) -> None:
        """Reads the next piece from the source, and no more until the guest has it."""
        try:
            piece = os.read(self._source, CHUNK)
        except OSError:
            piece = b""
        self._poll.unregister(self._source)
        if not piece:
            self._end()
            return
        self._rest = memoryview(piece)
        self._poll.modify(self._sink, select.POLLOUT)

    def _write(self) -> None:
        if self._last_write and self._source < 0 and unread_bytes(self._sink) == 0:
            self.held_up += time.monotonic() - self._last_write
        self._last_write = time.monotonic()
        try:
            self._rest = self._rest[os.write(self._sink, self._rest[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            self._end()  # the guest closed its end
            return
        if self._rest:
            return
        if self._source < 0:
            self._end()
        else:
            self._poll.modify(self._sink, 0)
            self._poll.register(self._source, select.POLLIN)

    def _end(self) -> None:
        self._is_over = True
        self._rest = self._rest[:0]
        self._poll.unregister(self._sink)
        self._close_sink()
        if self._source >= 0:
            with suppress(KeyError):
                self._poll.unregister(self._source)
