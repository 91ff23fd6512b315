"""Frames on the control socket, worker's end: two lengths, JSON, then bytes. Nothing is ever unpickled.

A run and its ending have no JSON.

`warmcell/backends/wasm/frames.py` is the supervisor's end of the same format; a test holds the two together.
"""

from __future__ import annotations

import _json
import array
import select
import struct
from math import inf, nan

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any
else:  # its half in C: the rest takes longer to load
    import _socket as socket

HEADER = struct.Struct(">II")
RUN = struct.Struct(">III")
ENDING = struct.Struct(">BBQd")
ENDINGS = ("exit", "trap", "timeout", "fuel", "memory", "failed")


class _Reading:
    """What the reader asks for, as `json.JSONDecoder` answers it; that takes longer to load."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    parse_constant = {"-Infinity": -inf, "Infinity": inf, "NaN": nan}.__getitem__


# `json.dumps` would make one for every frame.
_TO_JSON = _json.make_encoder(None, None, _json.encode_basestring_ascii, None, ":", ",", False, False, True)
_FROM_JSON = _json.make_scanner(_Reading)  # type: ignore[arg-type]
MAX_DESCRIPTORS = 8
_RECEIVE_BYTES = 1 << 14
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)


def write_json(value: Any) -> bytes:
    return "".join(_TO_JSON(value, 0)).encode()


def read_json(raw: bytes) -> Any:
    """As `json.loads` reads UTF-8. `ValueError` or `RecursionError` where it is none."""
    text = raw.decode("utf-8", "surrogatepass").strip(" \t\n\r")
    try:
        value, end = _FROM_JSON(text, 0)
    except (StopIteration, SystemError):  # before Python 3.12 it finds no other words while `json` is not loaded
        raise ValueError("no JSON") from None
    if end != len(text):
        raise ValueError("more than one value")
    return value


def encode(message: dict[str, Any], blob: bytes = b"") -> bytes:
    """One frame, ready to send."""
    text = write_json(message)
    return HEADER.pack(len(text), len(blob)) + text + blob


def encode_ending(kind: str, exit_code: int, memory_bytes: int, cpu: float, message: str) -> bytes:
    """How a run ended, ready to send."""
    text = message.encode("utf-8", "replace")
    size = ENDING.size + len(text)
    return HEADER.pack(0, size) + ENDING.pack(ENDINGS.index(kind), exit_code, memory_bytes, cpu) + text


def decode_run(blob: bytes) -> tuple[int, list[str], dict[str, str], bytes]:
    """One run as it was asked for: the number of its terms, arguments, environment, standard input."""
    terms, count, size = RUN.unpack_from(blob)
    end = RUN.size + size
    words = blob[RUN.size : end].decode().split("\0")
    if len(words) == count:
        return terms, words, {}, blob[end:]
    return terms, words[:count], dict(zip(words[count::2], words[count + 1 :: 2], strict=True)), blob[end:]


def _parsed(frame: bytes, text_size: int) -> tuple[dict[str, Any], bytes]:
    end = HEADER.size + text_size
    return (_FROM_JSON(frame[HEADER.size : end].decode(), 0)[0] if text_size else {}), frame[end:]


class SupervisorGone(Exception):
    """The other end closed: there is nobody left to work for."""


class DescriptorsLost(Exception):
    """The kernel could not deliver what was sent: the process is out of descriptors, and of use."""


class Channel:
    """Blocking frames over a Unix socket. Descriptors that came with a frame are in `descriptors` until taken."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._buffer = bytearray()
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._descriptors: list[int] = []

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        self.send_encoded(encode(message, blob))

    def send_encoded(self, data: bytes) -> None:
        try:
            self._control.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise SupervisorGone from error

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """A message and the bytes that came with it; those of a run come without one."""
        if not self._buffer:
            data = self._receive_some()
            if len(data) >= HEADER.size:
                text_size, blob_size = HEADER.unpack_from(data)
                if len(data) == HEADER.size + text_size + blob_size:  # one frame, as nearly always
                    return _parsed(data, text_size)
            self._buffer += data
        self._fill(HEADER.size)
        text_size, blob_size = HEADER.unpack_from(self._buffer)
        size = HEADER.size + text_size + blob_size
        self._fill(size)
        frame = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return _parsed(frame, text_size)

    def has_more(self, milliseconds: int = 0) -> bool:
        """Whether the next frame is on its way already, or by then."""
        return bool(self._buffer) or bool(self._poll.poll(milliseconds))

    def take_descriptors(self) -> list[int]:
        """What arrived with the frames received so far; the caller closes them."""
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
            raise DescriptorsLost("descriptors that came with a frame could not be taken")
        return data
