"""The connection between the front and a worker: lines of JSON both ways."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any, cast

Message = dict[str, Any]


class Control(asyncio.Protocol):
    """Calls `handle` for each message. What is sent in one turn of the event loop leaves in one system call."""

    def __init__(self) -> None:
        self.handle: Callable[[Message], object] = self._set_first
        loop = asyncio.get_running_loop()
        self._loop = loop
        #: The first message that came before `handle` was replaced.
        self.first: asyncio.Future[Message] = loop.create_future()
        self.closed = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._partial = b""
        self._unsent: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self.handle(json.loads(line))

    def _set_first(self, message: Message) -> None:
        self.first.set_result(message)

    def connection_lost(self, error: Exception | None) -> None:
        self.first.cancel()
        self.closed.set()

    def send(self, message: Message) -> None:
        """Nothing happens if the connection is closed: `closed` says so."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(json.dumps(message).encode())

    def _flush(self) -> None:
        lines, self._unsent = self._unsent, []
        if lines and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"\n".join([*lines, b""]))

    def close(self) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()


async def open_control(connection: socket.socket) -> Control:
    _, control = await asyncio.get_running_loop().create_unix_connection(Control, sock=connection)
    return control
