"""The supervisor's end of a worker's control socket. See `warmcell.guest.wasm.protocol` for the format.

The worker runs untrusted code: sizes are bounded before anything is allocated, and descriptors are never accepted.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from warmcell.cage.wire import descriptor_rights
from warmcell.core.records import dataclass
from warmcell.guest.wasm.protocol import (
    HEADER,
    MAX_BLOB_BYTES,
    MAX_TEXT_BYTES,
    ProtocolViolation,
    encode_frame,
    parse_message,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

_RECEIVE_BYTES = 1 << 16


class WorkerDied(Exception):
    """The worker closed its end: it crashed, was killed, or exited."""


class WorkerTimedOut(Exception):
    """The worker did not answer, or did not read, before the deadline. It is still running and must be killed."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A message and its blob. The message of an exit report is empty."""

    message: dict[str, Any]
    blob: bytes = b""


class FrameDecoder:
    """Turns received bytes into frames."""

    def __init__(self) -> None:
        #: Received, but not a whole frame yet.
        self.buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self.buffer += data

    def next_frame(self) -> Frame | None:
        if len(self.buffer) < HEADER.size:
            return None
        text_size, blob_size = HEADER.unpack_from(self.buffer)
        if text_size > MAX_TEXT_BYTES or blob_size > MAX_BLOB_BYTES:
            raise ProtocolViolation(f"frame of {text_size} + {blob_size} bytes")
        end = HEADER.size + text_size + blob_size
        if len(self.buffer) < end:
            return None
        text = self.buffer[HEADER.size : HEADER.size + text_size]
        blob = bytes(self.buffer[HEADER.size + text_size : end])
        del self.buffer[:end]
        return Frame(parse_message(text), blob)


def _exit_frame(data: bytes) -> Frame | None:
    """The data as a frame, if it is exactly one frame without a message: a run nearly always ends with that."""
    if len(data) < HEADER.size:
        return None
    text_size, blob_size = HEADER.unpack_from(data)
    if text_size or len(data) != HEADER.size + blob_size:
        return None
    return Frame({}, data[HEADER.size :])


class Channel:
    """Sends with a deadline, receives without blocking. The caller closes the socket."""

    def __init__(self, control: socket.socket) -> None:
        control.setblocking(False)
        self._control = control
        self._decoder = FrameDecoder()

    def fileno(self) -> int:
        return self._control.fileno()

    def send(
        self, message: dict[str, Any], blob: bytes = b"", descriptors: Sequence[int] = (), *, timeout: float
    ) -> None:
        """Raises `WorkerTimedOut` if the worker does not read all of it within `timeout`."""
        self.send_encoded(encode_frame(message, blob), descriptors, timeout=timeout)

    def send_encoded(self, data: bytes, descriptors: Sequence[int] = (), *, timeout: float) -> None:
        sent = self._send_some(data, descriptors)
        if sent < len(data):
            self._send_rest(memoryview(data)[sent:], () if sent else descriptors, time.monotonic() + timeout)

    def _send_some(self, data: bytes | memoryview, descriptors: Sequence[int]) -> int:
        """Sends what the socket accepts now, which is nearly always everything."""
        try:
            if descriptors:
                return self._control.sendmsg([data], descriptor_rights(descriptors))
            return self._control.send(data)
        except BlockingIOError:
            return 0
        except (OSError, ValueError) as error:
            raise WorkerDied(str(error)) from error

    def _send_rest(self, data: memoryview, descriptors: Sequence[int], deadline: float) -> None:
        poll = select.poll()
        poll.register(self._control, select.POLLOUT)
        while data:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise WorkerTimedOut
            sent = self._send_some(data, descriptors)
            descriptors = () if sent else descriptors
            data = data[sent:]

    def receive(self) -> Frame | None:
        """Call it when the socket is readable. None means that the frame is not complete yet."""
        if self._decoder.buffer and (frame := self._decoder.next_frame()) is not None:
            return frame
        try:
            data = self._control.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except (OSError, ValueError) as error:
            raise WorkerDied(str(error)) from error
        if not data:
            raise WorkerDied("the worker closed its socket")
        if not self._decoder.buffer and (frame := _exit_frame(data)) is not None:
            return frame
        self._decoder.feed(data)
        return self._decoder.next_frame()

    def next_received(self) -> Frame | None:
        """The next whole frame among the bytes already read."""
        return self._decoder.next_frame()
