"""Streams of gzip, bzip2 and xz that have several members: tools that compress in parallel write them.

A member costs the same time whether it has a megabyte or nothing. So many small ones are refused: no limit on bytes
sees them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

#: Members that may be of any size.
MOST_SMALL = 1000
#: Bytes of content in each member beyond those, on average. Less than a block of tar is in none.
_LEAST_AVERAGE = 512
#: A member copies the rest of its slice, so that many small ones in a large slice would take quadratic time.
_SLICE = 32 << 10
_PIECE = 1 << 20
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class TooManyMembers(ValueError):
    """A compressed stream with so many small members that they only cost time."""


class MemberCount:
    """The members of one stream. `least_average`: bytes in each, beyond the first thousand."""

    def __init__(self, least_average: int = _LEAST_AVERAGE) -> None:
        self._least_average = least_average
        self._members = self._content = 0

    def add(self, size: int, is_end: bool) -> None:
        """`size` bytes of content came out; `is_end`: a member ended. Raises `TooManyMembers`."""
        self._content += size
        self._members += is_end
        if is_end and self._members > MOST_SMALL + self._content // self._least_average:
            raise TooManyMembers(f"more than {MOST_SMALL} small compressed members")


def gunzip(chunks: Iterable[bytes], *, is_strict: bool, least_average: int = _LEAST_AVERAGE) -> Iterator[bytes]:
    """The content, in pieces of at most 1 MiB. `zlib.error` if damaged, `EOFError` if truncated, or `TooManyMembers`.

    After the last member zeros may follow; if not `is_strict`, anything.
    """
    make = lambda: zlib.decompressobj(_GZIP_WINDOW)  # noqa: E731
    return _expand(chunks, make, b"\x1f", is_strict, MemberCount(least_average))


def expand(chunks: Iterable[bytes], make: Callable[[], Any], magic: bytes, *, is_strict: bool) -> Iterator[bytes]:
    """As `gunzip`, with the decompressor that `make` makes: of bzip2 or xz. Members begin with `magic`."""
    return _expand(chunks, make, magic[:1], is_strict, MemberCount())


def _expand(
    chunks: Iterable[bytes], make: Callable[[], Any], first: bytes, is_strict: bool, count: MemberCount
) -> Iterator[bytes]:
    inner, is_last = make(), False
    for data in _slices(chunks):
        while data or not (inner.eof or getattr(inner, "needs_input", True)):
            if inner.eof:
                is_last = is_last or not data.startswith(first)
                if is_last and not is_strict:
                    return
                if is_last and data.strip(b"\0"):
                    raise zlib.error("trailing data after the compressed data")
                if is_last:
                    break
                inner = make()
            piece = inner.decompress(data, _PIECE)
            count.add(len(piece), inner.eof)
            if piece:
                yield piece
            data = inner.unused_data if inner.eof else getattr(inner, "unconsumed_tail", b"")
    if not inner.eof:
        raise EOFError("the compressed data ends early")


def _slices(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        for start in range(0, len(chunk), _SLICE):
            yield chunk[start : start + _SLICE]
