"""Decodes Content-Encoding in bounded pieces, so that a decompression bomb costs no more than the size limit.

The limit applies to the bytes of every layer, not only of the last one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Protocol

from warmcell.core.compressed_members import MemberCount
from warmcell.core.errors import FetchFailed
from warmcell.net.optional_packages import optional

MAX_LAYERS = 2
PIECE = 64 * 1024
#: Each gzip member copies the rest of its slice: quadratic if many small ones are in a large slice.
GZIP_SLICE = 16 * 1024
#: The least average content of gzip members in bytes: servers write one member per record of a log.
LEAST_MEMBER = 64
# zstandard has no limit on the output of one call, so its input is sliced: at most 32 RLE blocks of 128 KiB each.
ZSTD_SLICE = 128
ZSTD_MAX_WINDOW = 8 * 1024 * 1024


class Layer(Protocol):
    """One coding. `feed` yields pieces; `is_complete` says whether the stream may end here."""

    def feed(self, data: bytes) -> Iterator[bytes]: ...

    def is_complete(self) -> bool: ...


class ZlibLayer:
    """gzip (with concatenated members) and deflate (with and without the zlib header, as servers send both)."""

    def __init__(self, coding: str) -> None:
        self._gzip = coding == "gzip"
        self._inner: Any = None
        self._started = False
        self._members = MemberCount(LEAST_MEMBER)

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), GZIP_SLICE):
            yield from self._feed(data[start : start + GZIP_SLICE])

    def _feed(self, data: bytes) -> Iterator[bytes]:
        piece = b""
        # A full piece means that zlib may hold more output although all input is consumed.
        while data or len(piece) == PIECE:
            if self._inner is None:
                if not data:
                    return
                self._inner = zlib.decompressobj(self._window_bits(data[0]))
                self._started = True
            piece = self._inner.decompress(data, PIECE)
            data = self._inner.unconsumed_tail
            self._members.add(len(piece), self._gzip and self._inner.eof)
            if self._inner.eof:
                data = self._inner.unused_data if self._gzip else b""
                self._inner = None if self._gzip else self._inner
            if piece:
                yield piece

    def _window_bits(self, first: int) -> int:
        if self._gzip:
            if self._started and first != 0x1F:
                raise ValueError("garbage after the compressed data")
            return 16 + zlib.MAX_WBITS
        return zlib.MAX_WBITS if first & 0x0F == 8 else -zlib.MAX_WBITS

    def is_complete(self) -> bool:
        return self._inner is None or bool(self._inner.eof)


class BrotliLayer:
    """br, with the output limit available since brotli 1.2."""

    def __init__(self, brotli: Any) -> None:
        self._inner = brotli.Decompressor()

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._inner.is_finished():
            return
        # Brotli may hold more output although all input is consumed: loop until it returns nothing.
        while piece := self._inner.process(data, output_buffer_limit=PIECE):
            yield piece
            if self._inner.is_finished():
                return
            data = b""

    def is_complete(self) -> bool:
        return bool(self._inner.is_finished())


class ZstdLayer:
    """zstd (with concatenated frames, as parallel compressors write them), with the window size of RFC 9659."""

    def __init__(self, zstandard: Any) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW)
        self._inner = self._decompressor.decompressobj()
        self._frames = MemberCount(LEAST_MEMBER)

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), ZSTD_SLICE):
            rest = data[start : start + ZSTD_SLICE]
            while rest:
                if self._inner.eof:
                    self._inner = self._decompressor.decompressobj()
                piece = self._inner.decompress(rest)
                rest = self._inner.unused_data
                self._frames.add(len(piece), self._inner.eof)
                if piece:
                    yield piece

    def is_complete(self) -> bool:
        return bool(self._inner.eof)


@cache
def _modules() -> dict[str, Any]:
    found = {"zstd": optional("zstandard")}
    brotli = optional("brotli")
    # Older versions of brotli cannot bound the output of one call, so they are not used.
    if brotli is not None and hasattr(brotli.Decompressor, "can_accept_more_data"):
        found["br"] = brotli
    return {coding: module for coding, module in found.items() if module is not None}


def accepted_codings() -> str:
    """The Accept-Encoding header: what can be decoded within bounds."""
    return ", ".join(["gzip", "deflate", *sorted(_modules())])


def _layer(coding: str) -> Layer | None:
    if coding in ("gzip", "x-gzip", "deflate"):
        return ZlibLayer(coding.removeprefix("x-"))
    module = _modules().get(coding)
    if module is None:
        return None
    return BrotliLayer(module) if coding == "br" else ZstdLayer(module)


class BodyDecoder:
    """Decodes a response body incrementally and enforces the size limit."""

    def __init__(self, content_encoding: str, max_bytes: int) -> None:
        codings = [part.strip().lower() for part in content_encoding.split(",")]
        wanted = [coding for coding in codings if coding not in ("", "identity")]
        if len(wanted) > MAX_LAYERS:
            raise FetchFailed(f"the response is encoded {len(wanted)} times over", reason="too_large")
        layers = [_layer(coding) for coding in reversed(wanted)]
        # An unknown coding is passed through unchanged, with its header.
        self.is_decoding = bool(wanted) and None not in layers
        self._layers = [layer for layer in layers if layer is not None] if self.is_decoding else []
        self._counts = [0] * (len(self._layers) + 1)
        self._max_bytes = max_bytes

    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            yield from self._decode_layers(0, [data])
        except FetchFailed:
            raise
        except Exception as error:
            # Each library has its own exceptions; all of them mean that the server sent invalid data.
            raise FetchFailed(f"the response body cannot be decoded: {error}", reason="connect") from None

    def _decode_layers(self, depth: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._counts[depth] += len(piece)
            # Compressed data may be slightly larger than its content.
            slack = PIECE if depth < len(self._layers) else 0
            if self._counts[depth] > self._max_bytes + slack:
                message = f"the response body is larger than {self._max_bytes} bytes"
                raise FetchFailed(message, reason="too_large", hint="raise max_body_bytes")
            if depth == len(self._layers):
                yield piece
            else:
                yield from self._decode_layers(depth + 1, self._layers[depth].feed(piece))

    def finish(self) -> None:
        """Raise `FetchFailed` if a layer is incomplete: a truncated body must not look complete."""
        if self._counts[0] and not all(layer.is_complete() for layer in self._layers):
            message = "the response body cannot be decoded: the compressed data ends early"
            raise FetchFailed(message, reason="connect")
