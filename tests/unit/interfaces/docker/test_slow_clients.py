"""Clients of the Docker socket that send a request byte by byte, or do not read the answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.helpers import until_async

from warmcell.interfaces.docker import connection
from warmcell.interfaces.docker.connection import Connection, LargeBodies
from warmcell.interfaces.docker.messages import Request, Response
from warmcell.interfaces.serve.http_protocol import ConnectionShares


async def test_a_head_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one for each byte: 32 KiB of them would hold a connection for days."""
    monkeypatch.setattr(connection, "_HEAD_SECONDS", 0.5)
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)

    async def answer(_: Any) -> Any:
        raise AssertionError("the request is never complete")

    served = Connection(reader, writer, lambda _: False, answer, LargeBodies(), ConnectionShares(1, ""))
    serving = asyncio.ensure_future(served.serve())
    with theirs:
        theirs.sendall(b"GET /info HTTP/1.1\r\n")
        for _ in range(100):
            await asyncio.wait({serving}, timeout=0.1)
            if serving.done():
                break
            theirs.sendall(b"x")
    assert serving.done()
    await serving


@pytest.mark.parametrize("is_limited", [True, False])
async def test_a_stream_that_is_not_read_ends_if_others_wait_for_it(is_limited: bool) -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 65536
        finally:
            ended.set()

    async def answer(_: Request) -> Response:
        return Response(chunks=endless(), stall_seconds=0.2 if is_limited else None)

    served = Connection(reader, writer, lambda _: False, answer, LargeBodies(), ConnectionShares(1, ""))
    serving = asyncio.ensure_future(served.serve())
    with theirs:
        theirs.sendall(b"GET /events HTTP/1.1\r\nHost: d\r\n\r\n")
        await asyncio.wait({serving}, timeout=60 if is_limited else 1)
        assert serving.done() == ended.is_set() == is_limited
        if is_limited:
            assert writer.transport.get_write_buffer_size() == 0  # it does not wait for the client either
    await asyncio.wait({serving}, timeout=60)
    assert serving.done() and ended.is_set()


async def test_a_client_that_sent_more_and_hung_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sent ended the watch for its end: a stream without data kept the connection for ever."""
    monkeypatch.setattr(connection, "_HANGUP_SECONDS", 0.01)
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def silent() -> AsyncIterator[bytes]:
        try:
            begun.set()
            await asyncio.Event().wait()
            yield b""
        finally:
            ended.set()

    async def answer(_: Request) -> Response:
        return Response(chunks=silent())

    served = Connection(reader, writer, lambda _: False, answer, LargeBodies(), ConnectionShares(1, ""))
    serving = asyncio.ensure_future(served.serve())
    with theirs:
        theirs.sendall(b"GET /events HTTP/1.1\r\nHost: d\r\n\r\n")
        await asyncio.wait_for(begun.wait(), 60)
        theirs.sendall(b"GET /_ping HTTP/1.1\r\n")
        await until_async(lambda: served._http.trailing_data[0])
    await asyncio.wait({serving}, timeout=60)
    assert serving.done() and ended.is_set()
    await serving
