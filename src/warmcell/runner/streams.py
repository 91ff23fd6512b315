"""A run's streams: output is kept up to a cap and read to its end, input is passed on as fast as the guest takes it."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from warmcell.core.light import suppress
from warmcell.core.records import dataclass, field

CHUNK = 1 << 16


@dataclass(slots=True)
class Capture:
    """One output stream: the first `cap` bytes are kept, the rest is read and counted, so that nobody stalls."""

    cap: int
    kept: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self.cap - len(self.kept)
        if room > 0:
            self.kept += chunk[:room]

    def read(self, descriptor: int) -> bool | None:
        """Takes what is there now. False: the stream has ended. None: there is nothing yet."""
        try:
            chunk = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return None
        self.add(chunk)
        return bool(chunk)

    def finish(self) -> None:
        """No more will come."""


class Feed:
    """What the guest reads: bytes, or a descriptor that is passed on as its data comes.

    `sink` is our end of the guest's input, `close_sink` closes it. Whoever polls calls `handle` with what is ready.
    """

    def __init__(self, source: bytes | int, sink: int, close_sink: Callable[[], None], poll: select.poll) -> None:
        self._source = source if isinstance(source, int) else -1
        self._rest = memoryview(b"" if isinstance(source, int) else source)
        self._sink = sink
        self._close_sink = close_sink
        self._poll = poll
        self._is_over = False
        if self._rest:
            poll.register(sink, select.POLLOUT)
        elif self._source >= 0:
            poll.register(self._source, select.POLLIN)
            poll.register(sink, 0)  # only whether the guest has closed its end
        else:
            close_sink()

    def handle(self, descriptor: int) -> None:
        if self._is_over:  # source and sink were ready at the same time, and the other one was the end
            return
        if descriptor == self._source:
            self._draw()
        else:
            self._write()

    def _draw(self) -> None:
        """Takes the next piece from the source, and no more of it until that piece is with the guest."""
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
        try:
            self._rest = self._rest[os.write(self._sink, self._rest[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            self._end()  # the guest closed its end and will never read the rest
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
