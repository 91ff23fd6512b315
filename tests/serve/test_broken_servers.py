"""Servers and proxies that end, cut or never answer: typed errors in bounded time, and never another request's answer."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.helpers import PATIENCE

from warmcell import AsyncClient, BackendUnavailable, ExecRequest
from warmcell.core.types import EffectiveLimits
from warmcell.interfaces.client import connection as connection_module
from warmcell.interfaces.client.client import AsyncRemoteSandbox
from warmcell.interfaces.client.connection import Connection, SandboxEndpoint
from warmcell.interfaces.client.http_sandbox import HttpProcess, HttpSandbox, HttpSession
from warmcell.sandbox.interface import CellCallbacks, ProcessInfo

Answer = Callable[[str, asyncio.StreamWriter], Awaitable[bool]]
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
OUTPUT = b'id: %d-0\nevent: stdout\ndata: {"text": "a", "base64": "YQ=="}\n\n'
RESULT = b"event: result\ndata: {}\n\n"


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Connection]:
    """A server that answers each request line as `answer` does; False ends the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"(?i)content-length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                if not await answer(head.split(b"\r\n")[0].decode(), writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connection = Connection(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None)
    try:
        yield connection
    finally:
        await connection.aclose()
        server.close()


def replying(*pieces: bytes) -> Answer:
    async def answer(line: str, writer: asyncio.StreamWriter) -> bool:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return False

    return answer


def make_sandbox(connection: Connection) -> AsyncRemoteSandbox:
    limits = {name: 1 for name in EffectiveLimits.__slots__}
    created = {"id": "a", "timeout": 5.0, "limits": limits}
    return AsyncRemoteSandbox._with_driver(HttpSandbox(connection, Any, created))  # type: ignore[arg-type]


def make_process(connection: Connection) -> HttpProcess:
    return HttpProcess(SandboxEndpoint(connection, "a"), ProcessInfo(1, "x", ".", True, None))


@pytest.mark.parametrize("cut", [STREAM, STREAM + OUTPUT % 1, STREAM + OUTPUT % 1 + RESULT[:-2]])
async def test_a_stream_of_a_run_that_ends_without_a_result_is_an_error(cut: bytes) -> None:
    async with serving(replying(cut)) as connection, AsyncClient(connection.url) as client:
        heard: list[str] = []
        with pytest.raises(BackendUnavailable, match="ended without a result"):
            await make_sandbox(connection).sh("x", on_stdout=heard.append)
        with pytest.raises(BackendUnavailable, match="ended without a result"):
            [event async for event in client.stream(ExecRequest("python", "x", 1))]
        session = HttpSession(SandboxEndpoint(connection, "a"), {"id": "s", "language": "python"}, Any)  # type: ignore[arg-type]
        with pytest.raises(BackendUnavailable, match="ended without a result"):
            await session.run("x", 5, CellCallbacks(on_stdout=heard.append))
        assert heard == ["a"] * (2 if OUTPUT % 1 in cut else 0)


async def test_output_that_ends_without_a_result_is_reconnected_with_a_bound() -> None:
    requests: list[str] = []

    async def answer(line: str, writer: asyncio.StreamWriter) -> bool:
        requests.append(line)
        number = len(requests)
        writer.write(STREAM + (OUTPUT % number if number <= 5 else b""))
        return False

    async with serving(answer) as connection, asyncio.timeout(PATIENCE):
        seen = []
        with pytest.raises(BackendUnavailable, match="ended without a result"):
            async for event in make_process(connection).output():
                seen.append(event.data)
        assert seen == [b"a"] * 5 and len(requests) < 20
        assert "from=5-0" in requests[-1]


async def test_output_that_is_repeated_for_ever_is_no_progress() -> None:
    async with serving(replying(STREAM, OUTPUT % 1)) as connection, asyncio.timeout(PATIENCE):
        with pytest.raises(BackendUnavailable, match="ended without a result"):
            async for _ in make_process(connection).output():
                pass


async def test_output_behind_a_proxy_that_limits_the_duration_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream of a silent process ended cleanly, and lasted long enough to count as served."""
    monkeypatch.setattr("warmcell.interfaces.client.http_sandbox._STEADY_SECONDS", 0.02)
    streams = 0

    async def answer(line: str, writer: asyncio.StreamWriter) -> bool:
        nonlocal streams
        streams += 1
        writer.write(STREAM)
        await asyncio.sleep(0.05)
        writer.write(RESULT if streams == 10 else b"")
        return False

    async with serving(answer) as connection, asyncio.timeout(PATIENCE):
        assert [event async for event in make_process(connection).output()] == []
    assert streams == 10


async def test_cancelled_requests_do_not_mix_up_answers() -> None:
    """Requests are cancelled at every moment; the answers to the others name their own path."""
    chance = random.Random(7)

    async def answer(line: str, writer: asyncio.StreamWriter) -> bool:
        body = line.split()[1].encode()
        for piece in (b"HTTP/1.1 200 OK\r\n", b"content-length: %d\r\n\r\n" % len(body), body[:3], body[3:]):
            writer.write(piece)
            await asyncio.sleep(chance.random() * 0.003)
        return True

    async def ask(connection: Connection, number: int) -> None:
        path = f"/{number}" + "x" * chance.randrange(50)
        try:
            async with asyncio.timeout(chance.choice((0, chance.random() * 0.02, PATIENCE))):
                assert await connection.request("GET", path) == path.encode()
        except TimeoutError:
            pass

    async with serving(answer) as connection:
        for start in range(0, 200, 20):
            await asyncio.gather(*(ask(connection, number) for number in range(start, start + 20)))
        assert await connection.request("GET", "/last") == b"/last"


async def test_closing_at_a_server_that_never_answers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "CLOSE_SECONDS", 1)
    requests: set[str] = set()
    is_mute = True

    async def answer(line: str, writer: asyncio.StreamWriter) -> bool:
        requests.add(line)
        await asyncio.sleep(PATIENCE if is_mute else 0)
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        return True

    async with serving(answer) as connection, asyncio.timeout(PATIENCE / 2):
        sandbox = make_sandbox(connection)
        closes = await asyncio.gather(sandbox.destroy(), sandbox.aclose(), return_exceptions=True)
        assert all(isinstance(error, BackendUnavailable) for error in closes) and closes[0] is closes[1]
        with pytest.raises(BackendUnavailable, match=r"did not answer within 1 s"):
            await sandbox.destroy()
        monkeypatch.undo()
        is_mute = False
        await sandbox.destroy()
        await sandbox.destroy()
        assert requests == {"DELETE /v1/sandboxes/a HTTP/1.1"}


async def test_closing_at_a_server_that_is_gone_is_a_typed_error_each_time() -> None:
    async with serving(replying()) as gone:
        connection = Connection(gone.url, None)
    sandbox = make_sandbox(connection)
    watch = sandbox.watch()
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="could not be reached"):
            await watch.__aenter__()
    session = HttpSession(SandboxEndpoint(connection, "a"), {"id": "s", "language": "python"}, Any)  # type: ignore[arg-type]
    for close in (session.close, session.close, sandbox.destroy, sandbox.destroy):
        with pytest.raises(BackendUnavailable, match="could not be reached"):
            await close()
    for _ in range(2):
        await watch.aclose()
        await connection.aclose()
