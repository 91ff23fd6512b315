"""`/v1/sandboxes/{id}/ports/{port}/ws`: one connection to a port of the sandbox, for clients on other machines.

Bytes as they are, so that what a browser would make of them stays with whoever has the other end.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from warmcell.interfaces.serve.exchange import Refused
from warmcell.interfaces.serve.service import held_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.terminals import Nothing
from warmcell.interfaces.serve.web_sockets import DONE, accept, command, heard, say, socket_door

_PORT = re.compile(r"[1-9][0-9]{0,4}")
_CHUNK = 1 << 16


async def carry(socket: WebSocket, tenant: Tenant) -> None:
    """Both ways, until both have ended or the client goes."""
    held, name = held_of(socket, tenant), socket.path_params["port"]
    if not _PORT.fullmatch(name):
        raise Refused(404, "there is no such port")
    try:
        reader, writer = await asyncio.open_connection(sock=await held.sandbox.connect(int(name)))
    except ConnectionError:
        raise Refused(502, "nobody listens on that port in the sandbox") from None
    try:
        await accept(socket)
        outward = asyncio.ensure_future(_outward(socket, reader))
        try:
            await _inward(socket, writer)
            await outward
        finally:
            outward.cancel()
            await asyncio.gather(outward, return_exceptions=True)
        await socket.close(DONE)
    finally:
        writer.close()


async def _inward(socket: WebSocket, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):  # the guest reads no more; what it says goes on
        async for message in heard(socket):
            if isinstance(message, str):
                command(message, {"end": Nothing})
                writer.write_eof()
                return
            writer.write(message)
            await writer.drain()
        raise WebSocketDisconnect


async def _outward(socket: WebSocket, reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            await socket.send_bytes(data)
    await say(socket, "end", {})


def routes() -> list[Any]:
    return [socket_door("/v1/sandboxes/{id}/ports/{port}/ws", carry, "sandbox")]
