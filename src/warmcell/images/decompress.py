"""Decompression of layers, in bounded pieces, with the digest of what comes out."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from typing import IO

from warmcell.core.errors import BackendUnavailable, ImageInvalid
from warmcell.images.blobs import CHUNK, read_chunks
from warmcell.images.limits import Budget
from warmcell.net.optional_packages import optional

_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_GZIP_WINDOW = 31
#: Each member copies the rest of its slice, so that many small ones in a large slice would take quadratic time.
SLICE = 32 * 1024
#: Writers leave one or two members without content; thousands only cost time, and no limit on bytes sees them.
_MOST_EMPTY_MEMBERS = 1000
#: Layers are compressed with windows of up to 8 MiB, or 128 MiB with `--long`.
_ZSTD_WINDOW = 128 << 20


def compression_of(stream: IO[bytes]) -> str:
    """ "gzip", "zstd" or "none", by the first bytes. Media types are often wrong, the bytes never are."""
    magic = stream.read(4)
    stream.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        return "gzip"
    return "zstd" if magic == _ZSTD_MAGIC else "none"


def decompress(stream: IO[bytes]) -> Iterator[bytes]:
    """The uncompressed content, in pieces of at most 1 MiB."""
    match compression_of(stream):
        case "gzip":
            return _gunzip(stream)
        case "zstd":
            return _unzstd(stream)
        case _:
            return read_chunks(stream)


def _gunzip(stream: IO[bytes]) -> Iterator[bytes]:
    """All members: tools that compress in parallel write several."""
    inner, is_fresh, empty = zlib.decompressobj(_GZIP_WINDOW), True, EmptyMembers()
    try:
        for data in read_slices(stream):
            while data:
                if inner.eof:
                    if not data.startswith(_GZIP_MAGIC[:1]):
                        return  # padding after the last member
                    inner = zlib.decompressobj(_GZIP_WINDOW)
                piece = inner.decompress(data, CHUNK)
                empty.count(piece, inner.eof)
                if piece:
                    yield piece
                is_fresh = False
                data = inner.unused_data if inner.eof else inner.unconsumed_tail
    except zlib.error as error:
        raise ImageInvalid(f"a layer is damaged: {error}") from None
    if is_fresh or not inner.eof:
        raise ImageInvalid("a layer is truncated: its gzip stream ends early")


def read_slices(stream: IO[bytes]) -> Iterator[bytes]:
    for chunk in read_chunks(stream):
        for start in range(0, len(chunk), SLICE):
            yield chunk[start : start + SLICE]


class EmptyMembers:
    """Refuses a compressed stream with too many members that have no content."""

    def __init__(self) -> None:
        self._number = 0
        self._has_content = False

    def count(self, piece: bytes, is_end: bool) -> None:
        self._has_content |= bool(piece)
        if not is_end:
            return
        self._number += not self._has_content
        self._has_content = False
        if self._number > _MOST_EMPTY_MEMBERS:
            raise ImageInvalid(f"a layer or archive has more than {_MOST_EMPTY_MEMBERS} empty compressed members")


def _unzstd(stream: IO[bytes]) -> Iterator[bytes]:
    zstandard = optional("zstandard")
    if zstandard is None:
        raise BackendUnavailable(
            "a layer is compressed with zstd, which needs the package 'zstandard'", hint="pip install 'warmcell[net]'"
        )
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    try:
        with decompressor.stream_reader(stream, read_across_frames=True, closefd=False) as reader:
            while piece := reader.read(CHUNK):
                yield piece
    except zstandard.ZstdError as error:
        raise ImageInvalid(f"a layer is damaged: {error}") from None


class LayerReader:
    """Reads exact amounts from an uncompressed stream; counts and hashes everything."""

    def __init__(self, chunks: Iterator[bytes], budget: Budget, compressed_size: int) -> None:
        self._chunks = chunks
        self._budget = budget
        self._compressed_size = compressed_size
        self._buffer = memoryview(b"")
        self._hash = hashlib.sha256()
        self.size = 0

    def read_some(self, most: int) -> memoryview:
        """Between one and `most` bytes; empty at the end."""
        if not self._buffer:
            self._buffer = memoryview(self._next_chunk())
        piece, self._buffer = self._buffer[:most], self._buffer[most:]
        return piece

    def read_exactly(self, size: int) -> bytes:
        """`size` bytes, or fewer at the end of the stream."""
        if len(self._buffer) >= size:
            piece, self._buffer = self._buffer[:size], self._buffer[size:]
            return bytes(piece)
        parts, left = [], size
        while left and (piece := self.read_some(left)):
            parts.append(bytes(piece))
            left -= len(piece)
        return b"".join(parts)

    def skip(self, size: int) -> None:
        while size and (piece := self.read_some(size)):
            size -= len(piece)
        if size:
            raise ImageInvalid("a layer is truncated")

    @property
    def position(self) -> int:
        """Bytes taken so far."""
        return self.size - len(self._buffer)

    def finish(self) -> str:
        """Read to the end and return the digest of the whole."""
        while self.read_some(CHUNK):
            pass
        return f"sha256:{self._hash.hexdigest()}"

    def _next_chunk(self) -> bytes:
        chunk = next(self._chunks, b"")
        self._hash.update(chunk)
        self.size += len(chunk)
        self._budget.count_bytes(len(chunk))
        self._budget.check_ratio(self.size, self._compressed_size)
        return chunk
