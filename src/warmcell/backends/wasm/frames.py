"""Frames on the control socket, supervisor's end: two lengths, JSON, then bytes. Nothing is ever unpickled.

A run and its ending have no JSON, for reading and writing it would be a tenth of the time that they take.

What arrives was written by a process that runs untrusted code: sizes are bounded before anything is allocated, and no
descriptor is ever accepted from it.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Mapping, Sequence
from itertools import chain

from warmcell.cage.light import read_json, write_json
from warmcell.cage.wire import rights_to
from warmcell.core.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

HEADER = struct.Struct(">II")
#: A run: the number of its terms, how many arguments it has, how many bytes they and its environment are. After these,
#: its standard input.
RUN = struct.Struct(">III")
#: An ending: which kind, exit code, bytes of memory, seconds of processor time. After that, a message.
ENDING = struct.Struct(">BBQd")
ENDINGS = ("exit", "trap", "timeout", "fuel", "memory", "failed")
#: Of what a worker may send. Text is parsed here, so it is small; bytes are only ever passed on.
MAX_TEXT_BYTES = 64 << 10
MAX_BLOB_BYTES = 16 << 20
_RECEIVE_BYTES = 1 << 16


class WorkerDied(Exception):
    """The worker closed its end: it crashed, was killed, or ended."""


class Overstayed(Exception):
    """The worker did not answer, or not even read, by the deadline. It is still running and must be killed."""


class ProtocolViolation(Exception):
    """The worker sent something that no worker of ours sends. It is killed, whatever it is now."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message with the bytes that came with it; an ending has no message."""

    message: dict[str, Any]
    blob: bytes = b""


def encode(message: dict[str, Any], blob: bytes = b"") -> bytes:
    """One frame, ready to send."""
    text = write_json(message).encode()
    return b"".join((HEADER.pack(len(text), len(blob)), text, blob))


def encode_run(terms: int, argv: Sequence[str], env: Mapping[str, str], stdin: bytes) -> bytes:
    """One run, ready to send. No text may have NUL in it."""
    words = "\0".join([*argv, *chain.from_iterable(env.items())]).encode()
    blob_size = RUN.size + len(words) + len(stdin)
    return b"".join((HEADER.pack(0, blob_size), RUN.pack(terms, len(argv), len(words)), words, stdin))


class Decoder:
    """Turns received bytes into frames."""

    def __init__(self) -> None:
        #: What was fed and is no whole frame yet.
        self.rest = bytearray()

    def feed(self, data: bytes) -> None:
        self.rest += data

    def next_frame(self) -> Frame | None:
        if len(self.rest) < HEADER.size:
            return None
        text_size, blob_size = HEADER.unpack_from(self.rest)
        if text_size > MAX_TEXT_BYTES or blob_size > MAX_BLOB_BYTES:
            raise ProtocolViolation(f"frame of {text_size} + {blob_size} bytes")
        end = HEADER.size + text_size + blob_size
        if len(self.rest) < end:
            return None
        text = self.rest[HEADER.size : HEADER.size + text_size]
        blob = bytes(self.rest[HEADER.size + text_size : end])
        del self.rest[:end]
        return Frame(_parse(text) if text else {}, blob)


def whole_answer(data: bytes) -> Frame | None:
    """What was received, where it is one frame without a message, as the ending of a run nearly always is."""
    if len(data) < HEADER.size:
        return None
    text_size, blob_size = HEADER.unpack_from(data)
    if text_size or len(data) != HEADER.size + blob_size:
        return None
    return Frame({}, data[HEADER.size :])


def _parse(encoded: bytearray) -> dict[str, Any]:
    try:
        message = read_json(encoded.decode())
    except (ValueError, RecursionError):
        raise ProtocolViolation("frame is not JSON") from None
    if not isinstance(message, dict):
        raise ProtocolViolation("frame is not an object")
    return message


class Channel:
    """The supervisor's end of one worker's control socket, which stays its owner's to close."""

    def __init__(self, control: socket.socket) -> None:
        control.setblocking(False)
        self._control = control
        self._decoder = Decoder()

    def fileno(self) -> int:
        return self._control.fileno()

    def send(
        self, message: dict[str, Any], blob: bytes = b"", descriptors: Sequence[int] = (), *, timeout: float
    ) -> None:
        """Sends all of it within `timeout`, or raises `Overstayed`."""
        self.send_encoded(encode(message, blob), descriptors, timeout=timeout)

    def send_encoded(self, data: bytes, descriptors: Sequence[int] = (), *, timeout: float) -> None:
        """The same for frames that are ready."""
        sent = self._send_some(data, descriptors)
        if sent < len(data):
            self._send_rest(memoryview(data)[sent:], () if sent else descriptors, time.monotonic() + timeout)

    def _send_some(self, data: bytes | memoryview, descriptors: Sequence[int]) -> int:
        """What the socket takes at once, which is all of nearly every frame."""
        try:
            if descriptors:
                return self._control.sendmsg([data], rights_to(descriptors))
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
                raise Overstayed
            sent = self._send_some(data, descriptors)
            descriptors = () if sent else descriptors
            data = data[sent:]

    def receive(self) -> Frame | None:
        """What is there. Call it when the socket is readable; None means that the frame is not complete yet."""
        if self._decoder.rest and (frame := self._decoder.next_frame()) is not None:
            return frame
        try:
            data = self._control.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except (OSError, ValueError) as error:
            raise WorkerDied(str(error)) from error
        if not data:
            raise WorkerDied("the worker is gone")
        if not self._decoder.rest and (frame := whole_answer(data)) is not None:
            return frame
        self._decoder.feed(data)
        return self._decoder.next_frame()

    def next_received(self) -> Frame | None:
        """The next frame of what was read already."""
        return self._decoder.next_frame()
