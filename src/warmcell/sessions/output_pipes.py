"""The output pipes of a session's worker, split at the positions of displays."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
from collections.abc import Callable

from warmcell.sessions.marked_stream import MarkedStream

#: Called with the stream ("stdout" or "stderr"), its data, and whether that is its end in this cell.
Add = Callable[[str, bytes, bool], None]
_CHUNK = 1 << 16


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
            (waiting,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))
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
