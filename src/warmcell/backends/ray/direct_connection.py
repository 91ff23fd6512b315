"""A connection between a program and the service of a node, beside Ray, whose calls take milliseconds.

The node offers it through Ray, with a random key, and stops listening when the program has connected. Both ends prove
that they know the key before either unpickles anything of the other. The connection is not encrypted.

Its messages also carry tunnels: byte streams to a server on the node, as if it were here.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.core.light import on_error
from warmcell.core.records import dataclass
from warmcell.lifetime.temporary_directory import socket_directory

#: How long a node waits for its program to connect, and for a peer to prove that it knows the key.
_LISTEN_SECONDS, _PROOF_SECONDS = 60.0, 10.0
#: Peers that may be unproved at a time; others are closed at once.
_MOST_UNPROVED = 16
#: A firewall may drop what we send without an answer: Ray's calls are used then.
_CONNECT_SECONDS = 5.0
_KEY_BYTES, _LENGTH_BYTES = 32, 8
_PROGRAM, _NODE = b"program", b"node"
#: The path of a Unix socket, or a host and its port.
Address = str | tuple[str, int]
#: Bytes on their way to a reader; a writer of more waits.
WINDOW = 256 * 1024
_CHUNK = 1 << 16
#: Connects a client with the server of a node, until that closes its end.
Carry = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Offer:
    """Where a node listens, and the key for it."""

    address: Address
    key: bytes


class Connection:
    """Messages in both directions, in order. Raises `ConnectionError` when the other end is gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, payload: bytes) -> None:
        """Waits while the other end is behind."""
        self._writer.writelines((len(payload).to_bytes(_LENGTH_BYTES, "big"), payload))
        await self._writer.drain()

    async def receive(self) -> bytes:
        length = int.from_bytes(await self._read(_LENGTH_BYTES), "big")
        return await self._read(length)

    async def prove(self, key: bytes, own: bytes, other: bytes) -> None:
        """Shows the other end that we know the key, and raises `ConnectionError` unless it does. The key itself is not
        sent; `own` and `other` are names, so that neither end can be given its own proof.
        """
        challenge = secrets.token_bytes(_KEY_BYTES)
        self._writer.write(challenge)
        theirs = await self._read(_KEY_BYTES)
        self._writer.write(hmac.digest(key, own + challenge + theirs, "sha256"))
        wanted = hmac.digest(key, other + theirs + challenge, "sha256")
        if not hmac.compare_digest(await self._read(len(wanted)), wanted):
            raise ConnectionError("the peer does not have the key")

    def close(self) -> None:
        self._writer.close()

    async def _read(self, size: int) -> bytes:
        try:
            return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError:
            raise ConnectionError("the connection was closed") from None


class DirectListener:
    """The node's end: waits for one program and calls `serve` with its connection."""

    def __init__(self, serve: Callable[[Connection], Awaitable[None]]) -> None:
        self._serve = serve
        self._listening = ExitStack()
        #: The event loop alone would not keep them alive.
        self._connections: set[asyncio.Task[None]] = set()
        self._unproved = 0

    async def listen(self, host: str | None) -> Offer:
        """On a free TCP port of the host; None: on a Unix socket in a private directory. Ends an earlier offer."""
        self.stop()
        key = secrets.token_bytes(_KEY_BYTES)

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accept(key, Connection(reader, writer))

        with ExitStack() as stack:
            if host is None:
                path = f"{stack.enter_context(socket_directory('node'))}/direct"
                server = await asyncio.start_unix_server(accept, path)
                offer = Offer(path, key)
            else:
                server = await asyncio.start_server(accept, host, 0)
                offer = Offer((host, server.sockets[0].getsockname()[1]), key)
            stack.callback(server.close)
            stack.callback(asyncio.get_running_loop().call_later(_LISTEN_SECONDS, self.stop).cancel)
            self._listening = stack.pop_all()
        return offer

    def stop(self) -> None:
        """Ends listening. Connections stay."""
        self._listening.close()

    async def _accept(self, key: bytes, connection: Connection) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            with suppress(ConnectionError, TimeoutError):
                await self._check(key, connection)
                self.stop()
                await self._serve(connection)
        finally:
            connection.close()

    async def _check(self, key: bytes, connection: Connection) -> None:
        if self._unproved >= _MOST_UNPROVED:
            raise ConnectionError("too many connections")
        self._unproved += 1
        try:
            async with asyncio.timeout(_PROOF_SECONDS):
                await connection.prove(key, _NODE, _PROGRAM)
                await connection.receive()  # a program that gave up meanwhile uses Ray's calls
        finally:
            self._unproved -= 1


async def connect(offer: Offer) -> Connection:
    """The program's end. Raises `OSError` (`TimeoutError` is one) if the node cannot be reached directly."""
    async with asyncio.timeout(_CONNECT_SECONDS):
        if isinstance(offer.address, str):
            streams = await asyncio.open_unix_connection(offer.address)
        else:
            streams = await asyncio.open_connection(*offer.address)
    connection = Connection(*streams)
    with on_error(connection.close):
        async with asyncio.timeout(_PROOF_SECONDS):
            await connection.prove(offer.key, _PROGRAM, _NODE)
            await connection.send(b"")
    return connection


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
