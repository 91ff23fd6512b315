"""Compressed streams of several members: read whole, and refused if they only cost time."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Iterator

import pytest

from warmcell.core.compressed_members import TooManyMembers, expand, gunzip

TEXT = os.urandom(3_000_000) + bytes(3_000_000)


def pieces_of(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@pytest.mark.parametrize("size", [7, 65_536, 1 << 30])
def test_every_member_is_read(size: int) -> None:
    text = TEXT if size > 7 else TEXT[2_999_000:3_001_000]
    parts = list(pieces_of(text, 1 + len(text) // 3))
    for compress, make in ((bz2.compress, bz2.BZ2Decompressor), (lzma.compress, lzma.LZMADecompressor)):
        data = b"".join(map(compress, parts))
        assert b"".join(expand(pieces_of(data, size), make, data[:1], is_strict=False)) == text
    data = b"".join(map(gzip.compress, parts))
    for padding in (b"", bytes(100_000)):
        found = list(gunzip(pieces_of(data + padding, size), is_strict=True))
        assert b"".join(found) == text and max(map(len, found)) <= 1 << 20


def test_what_follows_the_last_member() -> None:
    data = gzip.compress(b"text")
    assert b"".join(gunzip([data + b"more" + data], is_strict=False)) == b"text"
    with pytest.raises(zlib.error, match="trailing data"):
        list(gunzip([data + bytes(100) + b"x"], is_strict=True))
    with pytest.raises(EOFError):
        list(gunzip([data + data[:-1]], is_strict=True))
    with pytest.raises(EOFError):
        list(gunzip([], is_strict=True))


@pytest.mark.parametrize(("content", "least", "is_refused"), [(0, 16, True), (1, 16, True), (20, 16, False)])
def test_small_members_are_few(content: int, least: int, is_refused: bool) -> None:
    data, read = gzip.compress(bytes(content)) * 5000, 0
    try:
        for piece in gunzip(pieces_of(data, 10_000), is_strict=True, least_average=least):
            read += len(piece)
    except TooManyMembers:
        assert is_refused and read <= 2000
    else:
        assert not is_refused and read == 5000 * content
