"""`/v1/sandboxes/{id}/ports/{port}/ws`: one connection to a port of the sandbox, for clients on other machines."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from warmcell.interfaces.serve.requests import cancel_and_wait
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.service import get_entry
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.terminals import Nothing
from warmcell.interfaces.serve.websockets import (
    DONE,
    accept,
    parse_command,
    receive_messages,
    send_message,
    websocket_route,
)

_PORT = re.compile(r"[1-9][0-9]{0,4}")
_CHUNK = 1 << 16


async def tunnel(socket: WebSocket, tenant: Tenant) -> None:
    """Copy both ways until both sides have ended or the client disconnects."""
    entry, name = get_entry(socket, tenant), socket.path_params["port"]
    if not _PORT.fullmatch(name):
        raise HttpError(404, f"invalid port {name[:20]!r}: use a number from 1 to 65535")
    try:
        reader, writer = await asyncio.open_connection(sock=await entry.sandbox.connect(int(name)))
    except ConnectionError:
        raise HttpError(502, "connection refused: nothing listens on that port in the sandbox") from None
    try:
        await accept(socket)
        outward = asyncio.ensure_future(_outward(socket, reader))
        try:
            await _inward(socket, writer)
            await outward
        finally:
            await cancel_and_wait(outward)
        await socket.close(DONE)
    finally:
        writer.close()


async def _inward(socket: WebSocket, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):  # the guest stopped reading; its output continues
        async for message in receive_messages(socket):
            if isinstance(message, str):
                parse_command(message, {"end": Nothing})
                writer.write_eof()
                return
            writer.write(message)
            await writer.drain()
        raise WebSocketDisconnect


async def _outward(socket: WebSocket, reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            await socket.send_bytes(data)
    await send_message(socket, "end", {})


def routes() -> list[Any]:
    return [websocket_route("/v1/sandboxes/{id}/ports/{port}/ws", tunnel, "sandbox")]
