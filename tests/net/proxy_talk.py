"""A guest's side of a conversation with the proxy, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass

from tests.helpers import PATIENCE

from warmcell.net.proxy.egress_proxy import EgressProxy


@dataclass
class Talk:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> str:
        return (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)).decode("latin-1")

    async def status(self) -> int:
        return int((await self.head()).split(" ")[1])

    async def rest(self) -> bytes:
        """Reads until the end or a reset, and returns the data before it."""
        found = b""
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(PATIENCE):
                while data := await self.reader.read(1 << 16):
                    found += data
        return found

    async def exactly(self, count: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(count), PATIENCE)

    async def start_tls(self, context: ssl.SSLContext, name: str | None) -> None:
        await asyncio.wait_for(self.writer.start_tls(context, server_hostname=name), PATIENCE)

    def close(self) -> None:
        self.writer.transport.abort()


async def talk(proxy: EgressProxy) -> Talk:
    return Talk(*await asyncio.open_connection("127.0.0.1", proxy.port))


async def open_tunnel(proxy: EgressProxy, where: str) -> tuple[Talk, int]:
    """After `CONNECT where`: the conversation and the status that the proxy answered with."""
    guest = await talk(proxy)
    await guest.send(f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
    return guest, await guest.status()


async def socks(proxy: EgressProxy, host: bytes, port: int, kind: int = 3, command: int = 1) -> tuple[Talk, int]:
    """After a SOCKS5 request: the conversation and the reply code."""
    guest = await talk(proxy)
    await guest.send(b"\x05\x01\x00")
    assert await guest.exactly(2) == b"\x05\x00"
    address = bytes([len(host)]) + host if kind == 3 else host
    await guest.send(bytes([5, command, 0, kind]) + address + port.to_bytes(2, "big"))
    return guest, (await guest.exactly(10))[1]


async def get(proxy: EgressProxy, url: str, *headers: str, method: str = "GET") -> tuple[int, bytes]:
    """One absolute-form request on a connection of its own."""
    guest = await talk(proxy)
    host = url.split("/")[2]
    lines = [f"{method} {url} HTTP/1.1", f"Host: {host}", "Connection: close", *headers, "", ""]
    await guest.send("\r\n".join(lines).encode("latin-1"))
    try:
        return await guest.status(), await guest.rest()
    finally:
        guest.close()
