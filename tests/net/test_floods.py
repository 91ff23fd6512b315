"""Bodies without end, peers without haste: a fetch is bounded in bytes, memory and time."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from tests.helpers import PATIENCE
from tests.net.servers import Handler, StubResolver, policy_for, serving

from warmcell.core.errors import FetchFailed
from warmcell.net.fetch.safe_client import SafeClient

MEGABYTE = 1 << 20


async def failure(handler: Handler | bytes, resolver: StubResolver, **policy: Any) -> tuple[FetchFailed, float]:
    async with serving(handler) as server:
        client = SafeClient(policy_for(server, **policy), resolver=resolver)
        began = time.monotonic()
        with pytest.raises(FetchFailed) as caught:
            await client.fetch(f"http://site.test:{server.port}/")
        return caught.value, time.monotonic() - began


def writes(*pieces: bytes, then: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
        await writer.drain()
        if then is not None:
            await then(writer)

    return handler


def for_ever(piece: bytes, pause: float = 0.0) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    """Repeats the piece until the other side hangs up (or far longer than any test waits)."""

    async def repeat(writer: asyncio.StreamWriter) -> None:
        for _ in range(200_000):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)

    return repeat


@pytest.mark.attack("SS-16")
async def test_a_huge_content_length_is_refused_at_the_header(resolver: StubResolver) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n"
    error, _ = await failure(writes(head, then=for_ever(b"x" * 65536)), resolver, max_body_bytes=MEGABYTE)
    assert error.reason == "too_large" and "10737418240" in error.message


ENDLESS = {
    "until close": (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536),
    "chunked": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n"),
    "lying coding": (b"HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\n\r\n", b"x" * 65536),
    "unknown coding": (b"HTTP/1.1 200 OK\r\nContent-Encoding: compress\r\n\r\n", b"x" * 65536),
}


@pytest.mark.attack("SS-16")
@pytest.mark.parametrize("shape", ENDLESS)
async def test_an_endless_body_is_cut_at_the_cap(shape: str, resolver: StubResolver) -> None:
    head, piece = ENDLESS[shape]
    error, _ = await failure(writes(head, then=for_ever(piece)), resolver, max_body_bytes=MEGABYTE)
    assert error.reason == "too_large"


def compress_zeros(coding: str, megabytes: int) -> bytes:
    zeros = b"\0" * MEGABYTE
    if coding == "br":
        squeeze = brotli.Compressor(quality=5)
        return bytes(b"".join(squeeze.process(zeros) for _ in range(megabytes)) + squeeze.finish())
    inner = zstandard.ZstdCompressor().compressobj() if coding == "zstd" else zlib.compressobj(wbits=31)
    return b"".join(inner.compress(zeros) for _ in range(megabytes)) + inner.flush()


@contextlib.contextmanager
def memory_stays_flat() -> Iterator[None]:
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_kilobytes()
    yield
    assert peak_kilobytes() - before < 24 * 1024


def peak_kilobytes() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1))


@pytest.mark.needs("linux")
@pytest.mark.attack("SS-16")
@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "gzip, gzip"])
async def test_a_bomb_is_cut_at_the_cap_with_flat_memory(coding: str, resolver: StubResolver) -> None:
    data = compress_zeros(coding.split(",")[0], 200)
    if "," in coding:
        data = gzip.compress(data)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    with memory_stays_flat():
        error, _ = await failure(head + data, resolver, max_body_bytes=2 * MEGABYTE)
    assert error.reason == "too_large"


@pytest.mark.attack("SS-16")
async def test_stacked_codings_are_counted(resolver: StubResolver) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: " + b", ".join([b"gzip"] * 20) + b"\r\nContent-Length: 1\r\n\r\nx"
    error, _ = await failure(head, resolver)
    assert error.reason == "too_large" and "20 times" in error.message


SLOW = {
    "body, a byte at a time": (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x", 0.05),
    "headers that stall": (b"HTTP/1.1 200 OK\r\n", b"", 0.05),
    "headers, one at a time": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.05),
    "status line, a byte at a time": (b"HTTP/1.1 200 ", b"O", 0.05),
    "chunk sizes that stall": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1", b"", 0.05),
    "one byte chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 0.05),
    "one 1xx now and then": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.3),
}


@pytest.mark.attack("SS-17")
@pytest.mark.parametrize("kind", SLOW)
async def test_slow_peers_meet_the_total_deadline(kind: str, resolver: StubResolver) -> None:
    head, piece, pause = SLOW[kind]
    handler = writes(head, then=for_ever(piece, pause))
    error, seconds = await failure(handler, resolver, request_timeout=0.5)
    assert error.reason == "timeout"
    assert seconds < PATIENCE


FLOODS = {
    "informational responses": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-Flood: y\r\n" * 500),
    "one header line": (b"HTTP/1.1 200 OK\r\nX: ", b"y" * 65536),
    "status line": (b"HTTP/1.1 200 ", b"y" * 65536),
    "chunk extension": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"y" * 65536),
    "trailers": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * 5000),
}


@pytest.mark.attack("SS-17")
@pytest.mark.parametrize("kind", FLOODS)
async def test_floods_are_cut_long_before_the_deadline(kind: str, resolver: StubResolver) -> None:
    head, piece = FLOODS[kind]
    error, _ = await failure(writes(head, then=for_ever(piece)), resolver, request_timeout=60)
    assert error.reason == "connect"
    # Cut by us, not ended by the server.
    assert "too long" in error.message or kind in error.message, error.message


@pytest.mark.attack("SS-17")
async def test_ten_thousand_headers(resolver: StubResolver) -> None:
    flood = b"".join(b"X-%d: y\r\n" % number for number in range(10_000))
    error, _ = await failure(b"HTTP/1.1 200 OK\r\n" + flood + b"\r\n", resolver, request_timeout=60)
    assert error.reason == "connect"
    few_bytes = b"".join(b"X%d:\r\n" % number for number in range(1000))
    error, _ = await failure(b"HTTP/1.1 200 OK\r\n" + few_bytes + b"\r\n", resolver, request_timeout=60)
    assert "256 headers" in error.message


@pytest.mark.attack("SS-17")
async def test_a_peer_that_never_reads_cannot_hold_an_upload(resolver: StubResolver) -> None:
    from warmcell.net.fetch.messages import FetchRequest
    from warmcell.net.rules.fetch_policy import FetchPolicy

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(300)
        writer.transport.abort()

    listening = await asyncio.start_server(deaf, "127.0.0.1", 0)
    where = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    client = SafeClient(FetchPolicy((where,), request_timeout=0.5))
    began = time.monotonic()
    with pytest.raises(FetchFailed) as caught:
        await client.fetch(FetchRequest(f"http://{where}/", "POST", body=b"x" * (32 * MEGABYTE)))
    assert caught.value.reason == "timeout" and time.monotonic() - began < PATIENCE
    listening.close()
