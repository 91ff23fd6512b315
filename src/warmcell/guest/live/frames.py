"""Frames between the host and a live cage: four bytes of length, then one JSON object in UTF-8. Standard library only.

Both sides use this file: the agent and its workers import it as `warmcell_live.frames`, the host as
`warmcell.guest.live.frames`. The host decodes with it what a hostile guest sends.
"""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: From a guest.
MOST_BYTES = 1 << 20
#: From the host, which is trusted: room for the longest command line of the kernel, 2 MiB.
MOST_SENT = 4 << 20
_LENGTH = struct.Struct("!I")
_TEXT_OF = json.JSONEncoder(separators=(",", ":")).encode  # made once: `dumps` would make one for every message


class FrameError(Exception):
    """Received bytes are not a valid frame."""


class FrameTooLong(ValueError):
    """The message to send does not fit into a frame."""


def encode(message: dict[str, Any]) -> bytes:
    """`FrameTooLong` where it does not fit: that is the caller's fault, not the guest's."""
    return frame_text(_TEXT_OF(message))


def frame_text(text: str) -> bytes:
    """Frame text that already is JSON."""
    payload = text.encode()
    if len(payload) > MOST_SENT:
        raise FrameTooLong(f"{len(payload)} bytes are more than the {MOST_SENT} of one message")
    return _LENGTH.pack(len(payload)) + payload


class Decoder:
    """Takes bytes in any pieces and returns whole messages, each an object."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """`FrameError` at the first invalid frame; nothing after it can be decoded."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if size > self._most_bytes:
                raise FrameError(f"a frame of {size} bytes")
            end = _LENGTH.size + size
            if len(self._buffer) < end:
                break
            messages.append(_decode(self._buffer[_LENGTH.size : end]))
            del self._buffer[:end]
        return messages


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and the infinities are not JSON


_CONTENT_OF = json.JSONDecoder(parse_constant=_refuse).raw_decode  # made once, as above
#: A text as a JSON string.
quoted = json.encoder.encode_basestring_ascii


def _decode(payload: bytearray) -> dict[str, Any]:
    try:
        text = payload.decode()
        message, end = _CONTENT_OF(text)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise FrameError("a frame that is not JSON") from None
    if not isinstance(message, dict) or end != len(text):
        raise FrameError("a frame that is not an object")
    return message
