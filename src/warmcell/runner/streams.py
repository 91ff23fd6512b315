"""A run's streams. Output is read to its end and kept up to a cap; input is written as fast as the guest reads."""

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
    """One output stream. Keeps the first `cap` bytes; reads and counts the rest, so that the guest does not block."""

    cap: int
    kept: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self.cap - len(self.kept)
        if room > 0:
            self.kept += chunk[:room]

    def read(self, descriptor: int) -> bool | None:
        """Reads what is available. Returns False at the end of the stream, None if nothing is available yet."""
        try:
            chunk = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return None
        self.add(chunk)
        return bool(chunk)

    @property
    def is_truncated(self) -> bool:
        return self.total > self.cap

    def finish(self) -> None:
        """Called at the end of the stream."""


def unread_bytes(pipe: int) -> int:
    """How many bytes a pipe holds."""
    import fcntl
    import termios

    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def pipe_capacity(pipe: int) -> int:
    import fcntl

    return fcntl.fcntl(pipe, _F_GETPIPE_SZ)


class Feed:
    """Writes the guest's input: bytes, or data forwarded from a descriptor.

    `sink` is our end of the guest's stdin, `close_sink` closes it. Call `handle` with descriptors that are ready.
    """

    def __init__(self, source: bytes | int, sink: int, close_sink: Callable[[], None], poll: select.poll) -> None:
        self._source = source if isinstance(source, int) else -1
        self._rest = memoryview(b"" if isinstance(source, int) else source)
        self._sink, self._close_sink, self._poll = sink, close_sink, poll
        self._has_ended = False
        #: Seconds that the guest may have waited for us to write.
        self.guest_wait = 0.0
        self._last_write = 0.0
        if self._rest:
            poll.register(sink, select.POLLOUT)
        elif self._source >= 0:
            poll.register(self._source, select.POLLIN)
            poll.register(sink, 0)  # only for POLLERR, when the guest closes its end
        else:
            close_sink()

    def handle(self, descriptor: int) -> None:
        if self._has_ended:  # source and sink were both ready, and handling the first one ended the feed
            return
        if descriptor == self._source:
            self._read_source()
        else:
            self._write()

    def _read_source(self) -> None:
        """Reads one piece from the source, and stops polling it until the piece is written."""
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
            self.guest_wait += time.monotonic() - self._last_write
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
        self._has_ended = True
        self._rest = self._rest[:0]
        self._poll.unregister(self._sink)
        self._close_sink()
        if self._source >= 0:
            with suppress(KeyError):
                self._poll.unregister(self._source)
