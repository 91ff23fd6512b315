"""One HTTP/1.1 exchange over a byte stream: h11 parses, this module reads, writes and enforces bounds."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from warmcell.core.errors import FetchFailed
from warmcell.net.connect.byte_streams import ByteStream
from warmcell.net.connect.incoming_http import IncomingHttp
from warmcell.net.optional_packages import need
from warmcell.net.rules.headers import MAX_HEADER_BYTES

MAX_RESPONSE_HEADERS = 256
MAX_INFORMATIONAL = 8


class Exchange:
    """The client side. Used once: `send_head`, `send_body`..., `finish`, `read_head`, `read_body`."""

    def __init__(self, stream: ByteStream) -> None:
        self._h11 = need("h11")
        self._stream = stream
        self._conn = self._h11.Connection(self._h11.CLIENT, max_incomplete_event_size=MAX_HEADER_BYTES)
        self._incoming = IncomingHttp(self._conn)

    async def send_head(self, method: str, target: str, headers: Iterable[tuple[str, str]]) -> None:
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        try:
            request = self._h11.Request(method=method.encode("ascii"), target=target.encode("ascii"), headers=pairs)
        except (self._h11.LocalProtocolError, UnicodeError) as error:
            raise FetchFailed(f"the request is malformed: {error}", reason="invalid") from None
        await self._send(request)

    async def send_body(self, data: bytes) -> None:
        if data:
            await self._send(self._h11.Data(data=data))

    async def finish(self) -> None:
        await self._send(self._h11.EndOfMessage())

    async def _send(self, event: Any) -> None:
        # The server may respond and close before it has read the whole request; read_head then has the response.
        with contextlib.suppress(ConnectionError):
            await self._stream.write(self._conn.send(event) or b"")

    async def read_head(self) -> tuple[int, list[tuple[str, str]]]:
        """Status and headers of the final response, after a bounded number of informational ones."""
        for _ in range(MAX_INFORMATIONAL + 1):
            event = await self._next()
            if isinstance(event, self._h11.Response):
                return event.status_code, self._decode_headers(event)
            if not isinstance(event, self._h11.InformationalResponse) or event.status_code == 101:
                raise _broken("connection closed before a response arrived")
        raise _broken(f"more than {MAX_INFORMATIONAL} informational responses")

    def _decode_headers(self, response: Any) -> list[tuple[str, str]]:
        if len(response.headers) > MAX_RESPONSE_HEADERS:
            raise _broken(f"more than {MAX_RESPONSE_HEADERS} headers")
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw_items()]

    async def read_body(self) -> AsyncGenerator[bytes, None]:
        while True:
            event = await self._next()
            if isinstance(event, self._h11.Data):
                yield bytes(event.data)
            elif isinstance(event, self._h11.EndOfMessage):
                return
            else:
                raise _broken("connection closed in the middle of the body")

    async def _next(self) -> Any:
        try:
            while True:
                event = self._incoming.next_event()
                if event is not self._h11.NEED_DATA:
                    return event
                self._incoming.feed(await self._stream.read())
        except self._h11.RemoteProtocolError as error:
            raise _broken(str(error)) from None
        except OSError as error:
            raise _broken(str(error) or type(error).__name__) from None


def _broken(what: str) -> FetchFailed:
    return FetchFailed(f"invalid response from the server: {what}", reason="connect")
