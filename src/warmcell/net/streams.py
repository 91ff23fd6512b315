"""Byte streams: the one shape in which HTTP code sees a socket, a TLS session or a tunnel."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

READ_SIZE = 128 * 1024


class ByteStream(Protocol):
    """`read` gives b"" at the end; `write` waits for a slow peer; `close` drops the connection at once."""

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    async def write_eof(self) -> None: ...

    def close(self) -> None: ...


class SocketStream:
    """An asyncio connection. `unread` puts back what was only looked at."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._peeked = b""

    async def read(self) -> bytes:
        if self._peeked:
            data, self._peeked = self._peeked, b""
            return data
        return await self._reader.read(READ_SIZE)

    def unread(self, data: bytes) -> None:
        self._peeked = data + self._peeked

    async def write(self, data: bytes) -> None:
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
