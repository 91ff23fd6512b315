"""Both HTTP servers disconnect clients that send too slowly, without delaying others (PT-15)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.mcp import transports
from warmcell.interfaces.mcp.transports import serve_http
from warmcell.interfaces.serve import http_protocol
from warmcell.interfaces.serve.listener import serve_on
from warmcell.interfaces.serve.settings import Settings

HEAD = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"
#: What comes at once, and what then comes byte by byte, without an end.
SLOW = {
    "nothing": (b"", b""),
    "a head that drips": (b"POST /mcp HTTP/1.1\r\nX: ", b"x"),
    "a second head that drips": (HEAD + b"{}" + b"GET / HTTP/1.1\r\nX: ", b"x"),
    "a body that drips": (HEAD.replace(b"Length: 2", b"Length: 9999"), b"x"),
}
OK = b"HTTP/1.1 200"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the whole body, as the SDK does, and has no patience of its own."""
    if scope["type"] == "lifespan":
        return
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.request":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})


async def serve_mcp(tell: Callable[[int], object]) -> None:
    await serve_http(app, "127.0.0.1", 0, lambda url: tell(int(url.split(":")[2].partition("/")[0])))


async def serve_api(tell: Callable[[int], object]) -> None:
    class Drained:
        draining, shutdown_seconds = asyncio.Event(), 60.0

        def describe_work(self) -> str:
            return ""

    with socket.create_server(("127.0.0.1", 0)) as listening:
        tell(listening.getsockname()[1])
        await serve_on(listening, app, Settings(), Drained())


async def is_cut_off(port: int, at_once: bytes, then: bytes) -> bytes:
    """What it was answered by the time that its connection was closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(at_once)
    received = bytearray()

    async def receive() -> None:
        with suppress(ConnectionError):  # a reset must not lose earlier data
            while chunk := await reader.read(65536):
                received.extend(chunk)

    receiving = asyncio.ensure_future(receive())
    while not receiving.done():
        writer.write(then)
        await asyncio.wait([receiving], timeout=0.05)
    writer.close()
    return bytes(received)


@pytest.mark.attack("PT-15")
@pytest.mark.parametrize("serve", [serve_mcp, serve_api])
async def test_who_sends_too_slowly_is_cut_off(
    serve: Callable[[Callable[[int], object]], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 1.5)
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", 1.5)
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(serve(told.set_result))
    try:
        port = await asyncio.wait_for(told, 30)
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):  # between two requests there is no hurry
                writer.write(HEAD + b"{}")
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(OK)
                answers = await asyncio.gather(*(is_cut_off(port, *sent) for sent in SLOW.values()))
            writer.close()
        assert [answer.startswith(OK) for answer in answers] == [False, False, True, False]
    finally:
        serving.cancel()
        await asyncio.wait([serving])


@pytest.mark.attack("PT-15")
async def test_one_address_has_a_share_of_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest idle one makes room. Without a limit they took all descriptors, and no sandbox could start."""
    monkeypatch.setattr(transports, "MAX_CONNECTIONS", 4)
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 600)
    bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(serve_mcp(bound.set_result))
    held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    try:
        port = await asyncio.wait_for(bound, 30)
        async with asyncio.timeout(60):
            while len(held) < 6:
                held.append(await asyncio.open_connection("127.0.0.1", port))
            assert [await reader.read() for reader, _ in held[:3]] == [b""] * 3
            reader, writer = held[-1]
            writer.write(HEAD + b"{}")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(OK)
    finally:
        for _, writer in held:
            writer.close()
        serving.cancel()
        await asyncio.wait([serving])


async def test_a_port_that_is_taken_is_an_error_with_a_hint() -> None:
    """uvicorn ended the program, without a word of ours."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InvalidRequest) as refused:
        await serve_http(app, "127.0.0.1", taken.getsockname()[1], print)
    assert "cannot listen on 127.0.0.1" in refused.value.message and "--port" in str(refused.value.hint)
