"""TLS, the server's side, over any byte stream: for the hosts that the sandbox's own CA terminates."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from warmcell.net.streams import READ_SIZE, ByteStream

Result = TypeVar("Result")


class TlsServerStream:
    """Over a stream and not over a socket, because the ClientHello has been read already when this begins."""

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
