"""Local servers and a scripted resolver: the whole internet of these tests is on 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from warmcell.net.rules.fetch_policy import FetchPolicy

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """A raw TCP server that remembers every connection and every request head that reached it."""

    port: int = 0
    connections: int = 0
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    @property
    def head(self) -> str:
        return self.heads[-1].decode("latin-1")

    @property
    def literal(self) -> str:
        """The literal that a policy has to name for this server to be reachable."""
        return f"127.0.0.1:{self.port}"


def reply(body: bytes = b"hello", status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def redirect(location: str, status: int = 302) -> bytes:
    return reply(b"", f"{status} Found", f"Location: {location}")


@contextlib.asynccontextmanager
async def serving(answer: bytes | Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Answers every request with the same bytes, or hands connection and request to a handler."""
    server = Server()

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            server.heads.append(head)
            server.bodies.append(await _body(head, reader))
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(reader, writer)
        with contextlib.suppress(OSError):
            writer.close()

    listening = await asyncio.start_server(on_connection, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    for line in head.decode("latin-1").lower().split("\r\n"):
        if line.startswith("content-length:"):
            return await reader.readexactly(int(line.split(":")[1]))
    return b""


class StubResolver:
    """Answers from a table. A list of lists is given out one by one, the last one for ever: that is rebinding."""

    def __init__(self, **_: object) -> None:
        self.table: dict[str, list[Sequence[str]]] = {}
        self.asked: list[str] = []

    def add(self, name: str, *answers: Sequence[str]) -> StubResolver:
        self.table[name] = list(answers) or [["127.0.0.1"]]
        return self

    async def __call__(self, name: str, port: int) -> Sequence[str]:
        self.asked.append(name)
        if name not in self.table:
            raise OSError("Name or service not known")
        answers = self.table[name]
        return answers.pop(0) if len(answers) > 1 else answers[0]


def policy_for(*servers: Server, names: Sequence[str] = ("site.test",), **more: Any) -> FetchPolicy:
    """Allows the names at the servers' ports, and names the loopback address that they really have."""
    domains = [f"{name}:{server.port}" for name in names for server in servers]
    domains += [server.literal for server in servers]
    return FetchPolicy(allowed_domains=tuple(domains), **more)
