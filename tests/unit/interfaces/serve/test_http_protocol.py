"""Clients that send too little, take nothing, or only hold connections: the protocol cuts them off."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from warmcell.interfaces.serve import http_protocol
from warmcell.interfaces.serve.listener import serve_on
from warmcell.interfaces.serve.requests import MORE_BODY_SECONDS
from warmcell.interfaces.serve.settings import Settings

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


class Service:
    shutdown_seconds = 60.0

    def __init__(self) -> None:
        self.draining = asyncio.Event()

    def describe_work(self) -> str:
        return "nothing"


class App:
    """Reads the body; `/endless` then sends without end."""

    def __init__(self) -> None:
        self.streams = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        while (await receive()).get("more_body"):
            pass
        headers = [] if scope["path"] == "/endless" else [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["path"] != "/endless":
            await send({"type": "http.response.body", "body": b"ok"})
            return
        self.streams += 1
        try:
            disconnect = asyncio.ensure_future(receive())
            while not disconnect.done():
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        finally:
            disconnect.cancel()
            self.streams -= 1


@asynccontextmanager
async def serving(app: Any, **settings: Any) -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        task = asyncio.ensure_future(serve_on(listening, app, Settings(**settings), Service()))
        try:
            yield listening.getsockname()[1]
        finally:
            task.cancel()
            await asyncio.wait([task])


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.readline(), 20)
    finally:
        writer.close()


@pytest.mark.attack("S3-15")
async def test_a_body_of_tiny_chunks_is_rejected_early() -> None:
    tiny = CHUNKED + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"
    larger = CHUNKED + (b"40\r\n" + b"x" * 64 + b"\r\n") * 20_000 + b"0\r\n\r\n"
    few = CHUNKED + b"1\r\nx\r\n" * 4000 + b"0\r\n\r\n"
    async with serving(App()) as port:
        assert [(await ask(port, body))[9:12] for body in (tiny, larger, few)] == [b"400", b"200", b"200"]


class PatientApp(App):
    """Lets the body of `/patient` take longer."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") == "/patient":
            scope[MORE_BODY_SECONDS] = 60.0
        await super().__call__(scope, receive, send)


async def test_a_route_gives_its_clients_more_time_for_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "BODY_SECONDS", 0.2)
    half = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nx"
    async with serving(PatientApp()) as port:
        patient, patient_writer = await asyncio.open_connection("127.0.0.1", port)
        patient_writer.write(half % b"/patient")
        assert await ask(port, half % b"/") == b"", "closed without an answer, after 0.2 s"
        await asyncio.sleep(0.3)
        patient_writer.write(b"y")
        assert (await asyncio.wait_for(patient.readline(), 20))[9:12] == b"200"
        patient_writer.close()


@pytest.mark.attack("S3-16")
async def test_a_client_that_takes_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "STALLED_SECONDS", 0.3)
    app = App()
    async with serving(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(30):
            while not app.streams:
                await asyncio.sleep(0.05)
            while app.streams:
                await asyncio.sleep(0.05)
        writer.close()


async def test_a_client_that_reads_slowly_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "STALLED_SECONDS", 5.0)
    app = App()
    async with serving(app) as port:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)  # a large window opens in large steps
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=client, limit=1024)
        writer.write(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for _ in range(20):
            await reader.readexactly(200_000)
            await asyncio.sleep(0.3)
        assert app.streams == 1
        writer.close()


@pytest.mark.attack("S3-24")
async def test_idle_connections_make_room_for_requests() -> None:
    async with serving(App(), max_connections=5) as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        assert (await ask(port, GET))[9:12] == b"200"
        for _, writer in idle:
            writer.close()


@pytest.mark.attack("S3-24")
async def test_one_address_never_has_all_connections() -> None:
    """Streams that are not idle: without shares they would take every connection."""
    app = App()
    async with serving(app, max_connections=8) as port:
        greedy = [await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0)) for _ in range(6)]
        for _, writer in greedy:
            writer.write(GET.replace(b"GET /", b"GET /endless"))
        async with asyncio.timeout(30):
            while app.streams < 6:
                await asyncio.sleep(0.01)
        for _ in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            writer.write(GET.replace(b"GET /", b"GET /endless"))
            greedy.append((reader, writer))
            async with asyncio.timeout(30):
                with suppress(ConnectionResetError):
                    assert await reader.read(1) == b""  # closed without an answer
        assert (await ask(port, GET))[9:12] == b"200"
        for _, writer in greedy:
            writer.transport.abort()


@pytest.mark.attack("S3-25")
async def test_http_1_0_without_host_is_answered_at_once() -> None:
    async with serving(App()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.read())[9:12] == b"200"
        writer.close()
