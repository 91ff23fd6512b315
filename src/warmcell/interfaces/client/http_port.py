"""HttpPort: a port of a sandbox on a server, on the loopback of this host. Each connection is one WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from warmcell.core.errors import InvalidRequest
from warmcell.core.light import on_error
from warmcell.interfaces.client.connection import Connection, import_websockets
from warmcell.lifetime.threads import cancel_and_wait
from warmcell.sessions.ports import LOOPBACK
from warmcell.sessions.web_guard import REFUSAL, is_allowed

_CHUNK = 1 << 16
_END = json.dumps({"type": "end"})


class HttpPort:
    def __init__(self, connection: Connection, path: str, on_closed: Callable[[HttpPort], None]) -> None:
        self.port = 0
        self._connect = partial(connection.open_websocket, path, max_size=1 << 20, proxy=None)
        self._on_closed = on_closed
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()

    async def listen(self, host_port: int) -> None:
        import_websockets()
        try:
            # It listens only when it can be closed: a caller may be cancelled while it begins.
            self._server = await asyncio.start_server(
                self._serve, LOOPBACK, host_port, limit=_CHUNK, start_serving=False
            )
            self.port = self._server.sockets[0].getsockname()[1]
            async with on_error(self.aclose):
                await self._server.start_serving()
        except OSError as error:
            raise InvalidRequest(f"cannot listen on port {host_port}: {error.strerror}", field="host_port") from None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        try:
            await _forward(self._connect, reader, writer)
        finally:
            self._links.discard(link)
            writer.close()

    async def is_answered(self) -> bool:
        client = import_websockets()
        try:
            async with self._connect():
                return True
        except (OSError, client.exceptions.WebSocketException):
            return False

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        await cancel_and_wait(*self._links)
        self._on_closed(self)


async def _forward(connect: Callable[[], Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    client = import_websockets()
    try:
        async with connect() as socket:
            sending = asyncio.ensure_future(_send_all(reader, socket))
            receiving = asyncio.ensure_future(_receive_all(socket, writer))
            try:
                await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_EXCEPTION)
                for task in (sending, receiving):
                    if task.done():
                        task.result()
            finally:
                await cancel_and_wait(sending, receiving)
    except _Refused:
        writer.write(REFUSAL.encode())
    except (OSError, client.exceptions.WebSocketException):
        writer.transport.abort()  # as for a port without a listener


class _Refused(Exception):
    """A request from another origin's web page."""


async def _read_checked_start(reader: asyncio.StreamReader) -> bytes:
    """Read until it is clear whether another origin's web page sent this. Browsers may connect long before."""
    data, seen = bytearray(), 0
    while more := await reader.read(_CHUNK):
        data += more
        verdict = is_allowed(data, seen)
        if verdict is not None:
            break
        seen = len(data)
    else:
        verdict = not data
    if not verdict:
        raise _Refused
    return bytes(data)


async def _send_all(reader: asyncio.StreamReader, socket: Any) -> None:
    data = await _read_checked_start(reader)
    while data or not reader.at_eof():
        if data:
            await socket.send(data)
        data = await reader.read(_CHUNK)
    await socket.send(_END)


async def _receive_all(socket: Any, writer: asyncio.StreamWriter) -> None:
    async for message in socket:
        if isinstance(message, str):
            with suppress(OSError):  # the client has disconnected
                writer.write_eof()
            return
        writer.write(message)
        await writer.drain()
