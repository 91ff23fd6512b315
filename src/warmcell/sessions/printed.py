"""What a session's worker prints: two streams, read as far as they have come, and cut where displays belong."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
from collections.abc import Callable

from warmcell.sessions.marked_stream import MarkedStream

#: Is told the stream ("stdout" or "stderr"), what came of it, and whether that is its end in this cell.
Add = Callable[[str, bytes, bool], None]
_CHUNK = 1 << 16


class Printed:
    """Of one worker. `on_closed` is told the descriptor of a stream that has ended."""

    def __init__(self, stdout: int, stderr: int, mark: bytes, on_closed: Callable[[int], None]) -> None:
        self._names = {stdout: "stdout", stderr: "stderr"}
        self._streams = {descriptor: MarkedStream(mark) for descriptor in self._names}
        self._open = list(self._names)
        self._on_closed = on_closed
        self._poll = select.poll()
        #: Whether there was anything since `begin`.
        self._is_any = False
        for descriptor in self._names:
            os.set_blocking(descriptor, False)
            self._poll.register(descriptor, select.POLLIN)

    def begin(self) -> None:
        """With each cell."""
        self._is_any = False

    def hear(self, descriptor: int, add: Add) -> int:
        """What one read gives; returns how many bytes that were."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return 0
        self._is_any = True
        if not data:
            self._poll.unregister(descriptor)
            self._open.remove(descriptor)
            self._on_closed(descriptor)
        if told := self._streams[descriptor].feed(data):
            add(self._names[descriptor], told, False)
        return len(data)

    def drain(self, add: Add) -> None:
        """As much as there is now: whoever still writes must not keep us here."""
        if not self._poll.poll(0):
            return
        for descriptor in tuple(self._open):
            (waiting,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))
            while waiting > 0:
                waiting -= self.hear(descriptor, add) or waiting

    def tell(self, part: Callable[[MarkedStream], bytes], add: Add, *, is_last: bool = False) -> None:
        """What of each stream was held back until now, as far as `part` of it says."""
        if not self._is_any:
            return
        for descriptor, stream in self._streams.items():
            told = part(stream)
            if told or is_last:
                add(self._names[descriptor], told, is_last)
