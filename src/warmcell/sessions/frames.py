"""Frames of the live cage: four bytes of length, then one JSON object in UTF-8. What a guest sends is checked here."""

from __future__ import annotations

import json
import struct
from typing import Any

MOST_BYTES = 1 << 20
#: Of what we send, which is no danger to us: any command line that the kernel takes, which has 2 MiB.
MOST_SENT = 4 << 20
_LENGTH = struct.Struct("!I")
_TEXT_OF = json.JSONEncoder(separators=(",", ":")).encode  # made once: `dumps` would make one for every message


class FrameError(Exception):
    """What came is no frame: whoever sent it is not our agent, or not any more."""


class FrameTooLong(ValueError):
    """What we were to send does not fit."""


def encode(message: dict[str, Any]) -> bytes:
    """`FrameTooLong` where it does not fit: that is the caller's, not the guest's."""
    return framed(_TEXT_OF(message))


def framed(text: str) -> bytes:
    """A message that somebody has written as JSON."""
    payload = text.encode()
    if len(payload) > MOST_SENT:
        raise FrameTooLong(f"{len(payload)} bytes are more than the {MOST_SENT} of one message")
    return _LENGTH.pack(len(payload)) + payload


class Decoder:
    """Takes bytes as they come, from somebody hostile; gives whole messages, every one an object."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """`FrameError` at the first thing that is none; nothing after it means anything."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if size > self._most_bytes:
                raise FrameError(f"a frame of {size} bytes")
            end = _LENGTH.size + size
            if len(self._buffer) < end:
                break
            messages.append(_message(self._buffer[_LENGTH.size : end]))
            del self._buffer[:end]
        return messages


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and the infinities are no JSON


_CONTENT_OF = json.JSONDecoder(parse_constant=_refuse).raw_decode  # made once, as above
#: A text as JSON has it.
quoted = json.encoder.encode_basestring_ascii


def _message(payload: bytearray) -> dict[str, Any]:
    try:
        text = payload.decode()
        message, end = _CONTENT_OF(text)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise FrameError("a frame that is no JSON") from None
    if not isinstance(message, dict) or end != len(text):
        raise FrameError("a frame that is no object")
    return message
