"""Byte streams over the messages of a node: a connection to a server there, as if it were here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.lifetime.temporary_directory import socket_directory

#: Bytes on their way to a reader; a writer of more waits.
WINDOW = 256 * 1024
_CHUNK = 1 << 16
#: Connects a client with the server of a node, until that closes its end.
Carry = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Window:
    """How much of a stream may be on its way."""

    def __init__(self) -> None:
        self._free = WINDOW
        self._has_room = asyncio.Event()

    async def take(self, size: int) -> None:
        while self._free <= 0:
            self._has_room.clear()
            await self._has_room.wait()
        self._free -= size

    def add(self, size: int) -> None:
        self._free += size
        self._has_room.set()


class Carrier:
    """Copies a connection to messages and messages to the connection. Both ends of a tunnel have one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, send: Callable[..., object]) -> None:
        self._reader, self._writer, self._send = reader, writer, send
        self._window = Window()
        self._incoming: asyncio.Queue[bytes] = asyncio.Queue()

    def receive(self, kind: str, value: Any = b"") -> None:
        """A message of the other end: data, the end of its data, or that it has passed on ours."""
        if kind == "credit":
            self._window.add(value)
        else:
            self._incoming.put_nowait(value)

    async def run(self) -> None:
        """Until both directions have ended. Closes the connection."""
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._read())
                both.create_task(self._write())
        finally:
            self._writer.close()

    async def _read(self) -> None:
        with suppress(ConnectionError):
            while data := await self._reader.read(_CHUNK):
                await self._window.take(len(data))
                self._send("data", data)
        self._send("eof")

    async def _write(self) -> None:
        with suppress(ConnectionError):
            while data := await self._incoming.get():
                self._writer.write(data)
                await self._writer.drain()
                self._send("credit", len(data))
            self._writer.write_eof()


class NodeSocket:
    """A Unix socket in a private directory of this host. Each connection to it leads to the server of the node."""

    def __init__(self, carry: Carry) -> None:
        self._carry = carry
        self._stack = ExitStack()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()
        self.path = ""

    async def listen(self) -> None:
        directory = self._stack.enter_context(socket_directory("node"))
        self.path = f"{directory}/socket"
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._carry(reader, writer)
        except (SandboxError, ConnectionError, asyncio.CancelledError):
            return  # the client sees that its connection was closed, and asks the link why
        finally:
            self._connections.discard(task)
            writer.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        self._stack.close()
