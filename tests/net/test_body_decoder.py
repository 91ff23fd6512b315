"""Decoding: every coding, every layer, and the caps that hold while the data is still arriving."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from warmcell.core.errors import FetchFailed
from warmcell.net.fetch.body_decoder import BodyDecoder, accepted_codings


def raw_deflate(data: bytes) -> bytes:
    squeeze = zlib.compressobj(wbits=-15)
    return squeeze.compress(data) + squeeze.flush()


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}


def decode(coding: str, data: bytes, cap: int = 1 << 20, step: int = 65536) -> bytes:
    decoder = BodyDecoder(coding, cap)
    pieces = [piece for at in range(0, len(data), step) for piece in decoder.feed(data[at : at + step])]
    decoder.finish()
    return b"".join(pieces)


@pytest.mark.parametrize("coding", ENCODERS)
@given(data=st.binary(max_size=5000), step=st.integers(1, 700))
def test_round_trip_in_any_slices(coding: str, data: bytes, step: int) -> None:
    assert decode(coding, ENCODERS[coding](data), step=step) == data


@pytest.mark.parametrize("coding", ENCODERS)
def test_large_bodies(coding: str) -> None:
    data = bytes(range(256)) * 3000 + b"\0" * 100_000
    assert decode(coding, ENCODERS[coding](data)) == data


def test_deflate_without_its_header_and_gzip_in_members() -> None:
    assert decode("deflate", raw_deflate(b"abc" * 100)) == b"abc" * 100
    assert decode("gzip", gzip.compress(b"one") + gzip.compress(b"two")) == b"onetwo"


@pytest.mark.parametrize("step", [1, 7, 65536])
def test_zstd_in_frames(step: int) -> None:
    """Parallel compressors write several, and may begin with one that a decoder skips."""
    skipped = (0x184D2A50).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"abc"
    data = skipped + zstandard.compress(b"one" * 100) + zstandard.compress(b"two" * 100)
    assert decode("zstd", data, step=step) == b"one" * 100 + b"two" * 100
    for damaged in (data[:-3], data + b"garbage after the frames"):
        with pytest.raises(FetchFailed):
            decode("zstd", damaged, step=step)


def test_stacked_codings_are_undone_in_order() -> None:
    assert decode("gzip, br", brotli.compress(gzip.compress(b"x" * 1000))) == b"x" * 1000


def test_unknown_codings_are_left_alone() -> None:
    decoder = BodyDecoder("compress", 10)
    assert not decoder.is_decoding
    assert b"".join(decoder.feed(b"abc")) == b"abc"
    assert not BodyDecoder("gzip, compress", 10).is_decoding


@pytest.mark.attack("SS-16")
@pytest.mark.parametrize("coding", ["gzip, gzip, gzip", "br,br,br,br", ", ".join(["gzip"] * 5000)])
def test_too_many_layers_are_refused(coding: str) -> None:
    with pytest.raises(FetchFailed) as caught:
        BodyDecoder(coding, 1000)
    assert caught.value.reason == "too_large"


def bomb(coding: str, megabytes: int) -> bytes:
    """`megabytes` of zeros, made without ever holding them."""
    zeros = b"\0" * (1 << 20)
    if coding == "br":
        squeeze = brotli.Compressor(quality=5)
        return bytes(b"".join(squeeze.process(zeros) for _ in range(megabytes)) + squeeze.finish())
    inner: Any = zlib.compressobj(wbits=31) if coding == "gzip" else zlib.compressobj()
    if coding == "zstd":
        inner = zstandard.ZstdCompressor().compressobj()
    return bytes(b"".join(inner.compress(zeros) for _ in range(megabytes)) + inner.flush())


@pytest.mark.attack("SS-16")
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_a_bomb_costs_its_cap_and_not_its_size(coding: str) -> None:
    data = bomb(coding, 64)
    kept = 0
    tracemalloc.start()
    try:
        with pytest.raises(FetchFailed) as caught:
            for piece in BodyDecoder(coding, 1 << 20).feed(data):
                kept += len(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.reason == "too_large"
    assert kept <= 1 << 20
    assert peak < 12 << 20


@pytest.mark.attack("SS-16")
def test_a_bomb_inside_a_bomb_is_stopped_at_the_layer_that_bursts() -> None:
    with pytest.raises(FetchFailed) as caught:
        decode("gzip, gzip", gzip.compress(bomb("gzip", 32)))
    assert caught.value.reason == "too_large"
    hollow = gzip.compress(gzip.compress(b"") * 400_000)
    with pytest.raises(FetchFailed):
        decode("gzip, gzip", hollow)


@pytest.mark.attack("SS-16")
def test_a_huge_zstd_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    squeeze = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = squeeze.compress(b"x" * 1000) + squeeze.flush()
    with pytest.raises(FetchFailed):
        decode("zstd", data)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_garbage_and_half_a_body_are_errors(coding: str) -> None:
    whole = ENCODERS[coding](b"some text that is long enough" * 50)
    with pytest.raises(FetchFailed):
        decode(coding, b"\xff\xfe garbage that is no stream at all")
    with pytest.raises(FetchFailed):
        decode(coding, whole[: len(whole) // 2])


def test_an_empty_body_needs_no_stream() -> None:
    assert decode("gzip", b"") == b""


def test_what_is_offered_is_what_can_be_decoded() -> None:
    assert accepted_codings() == "gzip, deflate, br, zstd"


def test_small_gzip_members_are_few() -> None:
    member = gzip.compress(b"one record of a log, in about sixty-four bytes of text, not more\n")
    assert decode("gzip", member * 5000).count(b"\n") == 5000
    for content in (b"", b"x"):
        with pytest.raises(FetchFailed, match="more than 1000 small"):
            decode("gzip", gzip.compress(content) * 5000)


def test_small_zstd_frames_are_few() -> None:
    assert decode("zstd", zstandard.compress(b"x" * 64) * 5000) == b"x" * 320_000
    for content in (b"", b"x"):
        with pytest.raises(FetchFailed, match="more than 1000 small"):
            decode("zstd", zstandard.compress(content) * 5000)
