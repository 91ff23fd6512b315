"""Byte streams: one interface over sockets, TLS sessions and tunnels."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

READ_SIZE = 128 * 1024

Result = TypeVar("Result")


class ByteStream(Protocol):
    """`read` returns b"" at EOF; `write` waits while the peer's window is full; `close` aborts the connection."""

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    async def write_eof(self) -> None: ...

    def close(self) -> None: ...


class SocketStream:
    """An asyncio connection. `unread` pushes peeked data back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._peeked = b""
        self.bytes_read = self.bytes_written = 0

    async def read(self) -> bytes:
        if self._peeked:
            data, self._peeked = self._peeked, b""
            return data
        data = await self._reader.read(READ_SIZE)
        self.bytes_read += len(data)
        return data

    def unread(self, data: bytes) -> None:
        self._peeked = data + self._peeked

    async def write(self, data: bytes) -> None:
        self.bytes_written += len(data)
        self._writer.write(data)
        await self._writer.drain()

    async def write_eof(self) -> None:
        with contextlib.suppress(OSError):
            if self._writer.can_write_eof():
                self._writer.write_eof()

    async def aclose(self) -> None:
        """Close after flushing pending writes."""
        with contextlib.suppress(OSError):
            self._writer.close()
            await self._writer.wait_closed()

    def close(self) -> None:
        # Abort rather than close: a peer that does not read would keep the buffer and the socket alive.
        self._writer.transport.abort()


class TlsServerStream:
    """The server side of TLS, for hosts terminated by the sandbox's own CA.

    Wraps a stream rather than a socket because the ClientHello has already been read.
    """

    def __init__(self, inner: ByteStream, context: ssl.SSLContext) -> None:
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def handshake(self) -> None:
        await self._drive(self._tls.do_handshake)

    async def read(self) -> bytes:
        try:
            return await self._drive(lambda: self._tls.read(READ_SIZE))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    async def write(self, data: bytes) -> None:
        sent = 0
        while sent < len(data):
            sent += await self._drive(partial(self._tls.write, memoryview(data)[sent:]))

    async def write_eof(self) -> None:
        """Does nothing: TLS has no useful half-closed state. `aclose` sends close_notify."""

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        """Send close_notify, which lets the client tell a complete response from a truncated one."""
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        await self._flush()

    async def _drive(self, step: Callable[[], Result]) -> Result:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self._flush()
                data = await self._inner.read()
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await self._inner.write(self._outgoing.read())
