"""Decompresses layers in bounded pieces, and hashes their content."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from typing import IO

from warmcell.core.compressed_members import TooManyMembers, gunzip
from warmcell.core.errors import BackendUnavailable, ImageInvalid
from warmcell.images.blobs import CHUNK, read_chunks
from warmcell.images.limits import Budget
from warmcell.net.optional_packages import optional

_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
#: How far the compressed bytes may exceed twice the content.
_MOST_WITHOUT_CONTENT = 1 << 20
#: Layers are compressed with windows of up to 8 MiB, or 128 MiB with `--long`.
_ZSTD_WINDOW = 128 << 20


def compression_of(stream: IO[bytes]) -> str:
    """ "gzip", "zstd" or "none", detected by magic bytes: media types are often wrong."""
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
    try:
        yield from gunzip(read_chunks(stream), is_strict=False)
    except EOFError:
        raise ImageInvalid("a layer is truncated: its gzip stream ends early") from None
    except (zlib.error, TooManyMembers) as error:
        raise ImageInvalid(f"a layer is damaged: {error}") from None


class _MeteredStream:
    """A compressed stream. Fails when hardly any content results: empty frames only cost time."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._taken = self.produced = 0

    def read(self, size: int) -> bytes:
        if self._taken > _MOST_WITHOUT_CONTENT + 2 * self.produced:
            raise ImageInvalid("a layer is damaged: its zstd stream is nearly empty")
        data = self._stream.read(size)
        self._taken += len(data)
        return data


def _unzstd(stream: IO[bytes]) -> Iterator[bytes]:
    zstandard = optional("zstandard")
    if zstandard is None:
        reason = "a layer is compressed with zstd, which needs the package 'zstandard'"
        raise BackendUnavailable(reason, hint="pip install 'warmcell[net]'")
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    metered = _MeteredStream(stream)
    try:
        with decompressor.stream_reader(metered, read_across_frames=True, closefd=False) as reader:
            while piece := reader.read(CHUNK):
                metered.produced += len(piece)
                yield piece
    except zstandard.ZstdError as error:
        raise ImageInvalid(f"a layer is damaged: {error}") from None


class LayerReader:
    """Reads exact amounts from an uncompressed stream; counts and hashes everything."""

    def __init__(self, chunks: Iterator[bytes], budget: Budget, compressed_size: int) -> None:
        self._chunks, self._budget, self._compressed_size = chunks, budget, compressed_size
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
        """Bytes read so far."""
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
