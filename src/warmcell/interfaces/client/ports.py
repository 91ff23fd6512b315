"""A port of a remote sandbox on loopback of this host: each connection is carried through a WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import BackendUnavailable, InvalidRequest
from warmcell.sandbox.ports import checked_port
from warmcell.sessions.ports import LOOPBACK
from warmcell.sessions.web_guard import MOST_HEAD, REFUSAL, is_let_in

if TYPE_CHECKING:
    from warmcell.interfaces.client.connection import Connection

_CHUNK = 1 << 16
_END = json.dumps({"type": "end"})


class AsyncRemotePort:
    """As `AsyncExposedPort`: `url` leads to the sandbox's port for as long as this is open."""

    host = LOOPBACK

    def __init__(
        self, connection: Connection, path: str, guest_port: int, on_closed: Callable[[AsyncRemotePort], None]
    ) -> None:
        self.guest_port = checked_port("port", guest_port, 1)
        self.port = 0
        self._url = connection.url.replace("http", "ws", 1) + path
        self._headers, self._on_closed = connection.headers, on_closed
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def begin(self, host_port: int) -> None:
        web_sockets()
        try:
            self._server = await asyncio.start_server(
                self._carry, self.host, checked_port("host_port", host_port, 0), limit=_CHUNK
            )
        except OSError as error:
            raise InvalidRequest(f"cannot listen on port {host_port}: {error.strerror}", field="host_port") from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        try:
            await _carried(self._url, self._headers, reader, writer)
        finally:
            self._links.discard(link)
            writer.close()

    async def aclose(self) -> None:
        """Ends its connections. May be called twice."""
        if self._server is not None:
            self._server.close()
        for link in tuple(self._links):
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)
        self._on_closed(self)

    async def __aenter__(self) -> AsyncRemotePort:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<ExposedPort {self.url} -> {self.guest_port}>"


async def _carried(
    url: str, headers: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    first = await _first_bytes(reader)
    if not is_let_in(first):
        writer.write(REFUSAL.encode())
        return
    client = web_sockets()
    try:
        async with client.connect(url, additional_headers=headers, max_size=1 << 20, proxy=None) as socket:
            inward = asyncio.ensure_future(_inward(first, reader, socket))
            try:
                await _outward(socket, writer)
                await inward
            finally:
                inward.cancel()
                await asyncio.gather(inward, return_exceptions=True)
    except (OSError, client.exceptions.WebSocketException):
        writer.transport.abort()  # as a port where nobody listens


async def _first_bytes(reader: asyncio.StreamReader) -> bytes:
    """As many as it takes to know that no page of elsewhere sends them; a server may also be the first to speak."""
    data = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            data = await reader.read(_CHUNK)
    while data and is_let_in(data) is None and len(data) < MOST_HEAD:
        more = await reader.read(_CHUNK)
        if not more:
            break
        data += more
    return data


async def _inward(first: bytes, reader: asyncio.StreamReader, socket: Any) -> None:
    data = first
    while data or not reader.at_eof():
        if data:
            await socket.send(data)
        data = await reader.read(_CHUNK)
    await socket.send(_END)


async def _outward(socket: Any, writer: asyncio.StreamWriter) -> None:
    async for message in socket:
        if isinstance(message, str):
            with suppress(OSError):  # it has gone meanwhile
                writer.write_eof()
            return
        writer.write(message)
        await writer.drain()


def web_sockets() -> Any:
    try:
        import websockets
        import websockets.exceptions
    except ImportError:
        raise BackendUnavailable(
            "ports need the package 'websockets', which is not installed", hint="pip install 'warmcell[client]'"
        ) from None
    return websockets
