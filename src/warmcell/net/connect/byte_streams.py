"""Byte streams: the one shape in which HTTP code sees a socket, a TLS session or a tunnel."""

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
    """`read` gives b"" at the end; `write` waits for a slow peer; `close` drops the connection at once."""

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    async def write_eof(self) -> None: ...

    def close(self) -> None: ...


class SocketStream:
    """An asyncio connection. `unread` puts back what was only looked at; `came` and `went` count bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._peeked = b""
        self.came = self.went = 0

    async def read(self) -> bytes:
        if self._peeked:
            data, self._peeked = self._peeked, b""
            return data
        data = await self._reader.read(READ_SIZE)
        self.came += len(data)
        return data

    def unread(self, data: bytes) -> None:
        self._peeked = data + self._peeked

    async def write(self, data: bytes) -> None:
        self.went += len(data)
        self._writer.write(data)
        await self._writer.drain()

    async def write_eof(self) -> None:
        with contextlib.suppress(OSError):
            if self._writer.can_write_eof():
                self._writer.write_eof()

    async def aclose(self) -> None:
        """Closes after what was written has been sent, for answers that the peer must still get."""
        with contextlib.suppress(OSError):
            self._writer.close()
            await self._writer.wait_closed()

    def close(self) -> None:
        # abort, not close: a peer that reads nothing must not keep the buffer and the socket alive.
        self._writer.transport.abort()


class TlsServerStream:
    """The server's side of TLS, for the hosts that the sandbox's own CA terminates.

    Over a stream and not over a socket, because the ClientHello has been read already when this begins.
    """

    def __init__(self, inner: ByteStream, context: ssl.SSLContext) -> None:
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def handshake(self) -> None:
        await self._until_done(self._tls.do_handshake)

    async def read(self) -> bytes:
        try:
            return await self._until_done(lambda: self._tls.read(READ_SIZE))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    async def write(self, data: bytes) -> None:
        sent = 0
        while sent < len(data):
            sent += await self._until_done(partial(self._tls.write, memoryview(data)[sent:]))

    async def write_eof(self) -> None:
        """TLS has no half-open state worth having; the end is announced by `close`."""

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        """Says goodbye, so that the client can tell the end of the answer from a cut."""
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()
        await self._flush()

    async def _until_done(self, step: Callable[[], Result]) -> Result:
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
