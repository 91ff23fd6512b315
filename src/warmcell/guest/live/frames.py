"""Frames as the cage's side writes and reads them: four bytes of length, then one JSON object in UTF-8."""

import json
import struct

MOST_BYTES = 1 << 20
#: The host sends longer ones: see `MOST_SENT` on its side.
MOST_TAKEN = 4 << 20
_LENGTH = struct.Struct("!I")


class FrameError(ValueError):
    """What came is no frame."""


def encode(message):
    payload = json.dumps(message, separators=(",", ":")).encode()
    if len(payload) > MOST_BYTES:
        raise FrameError(f"a frame of {len(payload)} bytes")
    return _LENGTH.pack(len(payload)) + payload


class Decoder:
    """Takes bytes as they come and gives whole messages."""

    def __init__(self):
        self._buffer = bytearray()

    def feed(self, data):
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if size > MOST_TAKEN:
                raise FrameError(f"a frame of {size} bytes")
            if len(self._buffer) < _LENGTH.size + size:
                break
            messages.append(json.loads(bytes(self._buffer[_LENGTH.size : _LENGTH.size + size])))
            del self._buffer[: _LENGTH.size + size]
        return messages


class Channel:
    """A blocking conversation over one socket, for workers whose only business it is."""

    def __init__(self, channel):
        self._socket = channel
        self._decoder = Decoder()
        self._waiting = []

    def send(self, message):
        self._socket.sendall(encode(message))

    def receive(self):
        """The next message; None when the other side is gone."""
        while not self._waiting:
            data = self._socket.recv(1 << 16)
            if not data:
                return None
            self._waiting += self._decoder.feed(data)
        return self._waiting.pop(0)
