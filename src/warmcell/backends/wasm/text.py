"""Captured bytes to text. Pure."""

from __future__ import annotations


def cut_at_character(data: bytes) -> bytes:
    """Without the started but unfinished UTF-8 character at the end, if there is one."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return data
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if back < length else data
    return data


def as_text(data: bytes, is_truncated: bool) -> str:
    """What a caller reads; bytes that are no UTF-8 are replaced, and a cut is announced."""
    text = data.decode("utf-8", "replace")
    return f"{text}\n... (truncated after {len(data)} bytes)" if is_truncated else text
