"""Connections to the Docker socket that nobody uses make room for new ones; those with a request stay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.helpers import PATIENCE, until_async

from warmcell.interfaces.docker import server
from warmcell.interfaces.docker.engine import DockerSettings
from warmcell.interfaces.docker.server import DockerServer, listen

PING = b"GET /_ping HTTP/1.1\r\nHost: d\r\n\r\n"
BUSY = {
    "events": b"GET /events HTTP/1.1\r\nHost: d\r\n\r\n",
    "upload": b"POST /build HTTP/1.1\r\nHost: d\r\nContent-Length: 1000\r\n\r\nx",
}


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def ping(self) -> bool:
        """Whether the connection is served; False if it was closed."""
        try:
            self.writer.write(PING)
            head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 30)
            await self._reader.readexactly(2)
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        return head.startswith(b"HTTP/1.1 200 ")

    async def is_closed(self) -> bool:
        """Waits until it is closed."""
        return await asyncio.wait_for(self._reader.read(1), PATIENCE) == b""


class Sockets:
    """A server that takes four connections."""

    def __init__(self, path: str, served: DockerServer) -> None:
        self._path, self._served = path, served
        self._open: list[Client] = []

    async def connect(self, sent: bytes = b"") -> Client:
        made = Client(*await asyncio.open_unix_connection(self._path))
        self._open.append(made)
        made.writer.write(sent)
        return made

    async def connect_busy(self, sent: bytes) -> Client:
        made, before = await self.connect(sent), self._count_busy()
        await until_async(lambda: self._count_busy() > before)
        return made

    def _count_busy(self) -> int:
        return len(self._served._connections) - len(self._served._shares._idle)

    def close(self) -> None:
        for client in self._open:
            client.writer.close()


@asynccontextmanager
async def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sockets]:
    monkeypatch.setattr(server, "_MAX_CONNECTIONS", 4)
    path = str(tmp_path / "s")
    async with DockerServer(DockerSettings(path, store=str(tmp_path / "images")), listen(path)) as served:
        sockets = Sockets(path, served)
        try:
            yield sockets
        finally:
            sockets.close()


async def test_idle_connections_do_not_lock_others_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest idle goes first: one that was used a moment ago stays, one with half a head goes."""
    async with serve(tmp_path, monkeypatch) as sockets:
        used, silent, kept_alive, half = [await sockets.connect(part) for part in (b"", b"", b"", PING[:10])]
        assert await kept_alive.ping() and await used.ping()
        fifth, sixth = await sockets.connect(), await sockets.connect()
        assert await fifth.ping() and await sixth.ping()
        assert await silent.is_closed() and await half.is_closed()
        assert await used.ping() and await kept_alive.ping()
        for _ in range(20):
            assert await (await sockets.connect()).ping()


@pytest.mark.parametrize("request_of", BUSY)
async def test_connections_with_a_request_are_not_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_of: str
) -> None:
    async with serve(tmp_path, monkeypatch) as sockets:
        busy = [await sockets.connect_busy(BUSY[request_of]) for _ in range(3)]
        for _ in range(6):
            assert await (await sockets.connect()).ping()
        busy.append(await sockets.connect_busy(BUSY[request_of]))
        assert not await (await sockets.connect()).ping()
        for client in busy:
            client.writer.close()
        while not await (await sockets.connect()).ping():
            await asyncio.sleep(0.05)
