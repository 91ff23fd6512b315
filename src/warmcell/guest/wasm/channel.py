"""The worker's end of the control socket: blocking, and able to receive descriptors."""

from __future__ import annotations

import array
import select

from wasm.protocol import HEADER, encode_frame, parse_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any
else:  # the C half of the module: the rest takes longer to load
    import _socket as socket

_MAX_DESCRIPTORS = 8
_RECEIVE_BYTES = 1 << 14
_ANCILLARY_BYTES = socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4)


class SupervisorGone(Exception):
    """The supervisor closed its end."""


class DescriptorsLost(Exception):
    """The kernel dropped descriptors that came with a frame: this process has too many open files."""


class Channel:
    """Sends and receives frames. Keeps received descriptors until `take_descriptors`."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._buffer = bytearray()
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._descriptors: list[int] = []

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        self.send_encoded(encode_frame(message, blob))

    def send_encoded(self, data: bytes) -> None:
        try:
            self._control.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise SupervisorGone from error

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next message and its blob. A run has an empty message."""
        if not self._buffer:
            data = self._receive_some()
            if len(data) >= HEADER.size:
                text_size, blob_size = HEADER.unpack_from(data)
                if len(data) == HEADER.size + text_size + blob_size:  # exactly one frame: the usual case
                    return _split(data, text_size)
            self._buffer += data
        self._fill(HEADER.size)
        text_size, blob_size = HEADER.unpack_from(self._buffer)
        size = HEADER.size + text_size + blob_size
        self._fill(size)
        frame = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return _split(frame, text_size)

    def has_more(self, milliseconds: int = 0) -> bool:
        """Whether more data has arrived, or arrives within `milliseconds`."""
        return bool(self._buffer) or bool(self._poll.poll(milliseconds))

    def take_descriptors(self) -> list[int]:
        """The descriptors received so far, for the caller to close."""
        taken, self._descriptors = self._descriptors, []
        return taken

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            self._buffer += self._receive_some()

    def _receive_some(self) -> bytes:
        try:
            data, ancillary, flags, _ = self._control.recvmsg(_RECEIVE_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError as error:
            raise SupervisorGone from error
        if not data:
            raise SupervisorGone
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                self._descriptors.extend(received)
        if flags & socket.MSG_CTRUNC:
            raise DescriptorsLost("the kernel dropped descriptors that came with a frame")
        return data


def _split(frame: bytes, text_size: int) -> tuple[dict[str, Any], bytes]:
    end = HEADER.size + text_size
    return parse_message(frame[HEADER.size : end]) if text_size else {}, frame[end:]
