"""One HTTP/1.1 exchange over a byte stream: h11 parses, this module reads, writes and enforces bounds."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

from warmcell.core.errors import FetchFailed
from warmcell.net.connect.dial import ByteStream
from warmcell.net.optional_packages import need
from warmcell.net.rules.headers import MAX_HEADER_BYTES

MAX_BLANKS = 128
_CUT_FROM = b" " * (MAX_BLANKS // 2)
_TOO_MANY = b" " * MAX_BLANKS
# Line ends count as blanks because h11 joins folded lines, and each fold leaves a blank.
_AS_BLANKS = bytes.maketrans(b"\t\r\n", b"   ")


class IncomingHttp:
    """Feeds a peer's bytes into one h11 connection, except input on which it takes quadratic time.

    h11 matches header lines, trailers and chunk headers with patterns that are quadratic in the length of a run of
    blanks: 64 KiB of blanks hold the GIL for more than a minute. Long runs are allowed in a body; in a line they raise
    `RemoteProtocolError` before h11 gets all of them.
    """

    def __init__(self, connection: Any) -> None:
        self._h11 = need("h11")
        self._connection = connection
        self._pieces: deque[bytes] = deque()

    def feed(self, data: bytes) -> None:
        """Queue received data; b"" means EOF."""
        self._pieces.extend(_cut_inside_runs(data))

    def next_event(self) -> Any:
        """Like `Connection.next_event`; `NEED_DATA` once all queued data is consumed."""
        while (event := self._connection.next_event()) is self._h11.NEED_DATA and self._pieces:
            self._check_line(self._pieces[0])
            self._connection.receive_data(self._pieces.popleft())
        return event

    def trailing_bytes(self) -> bytes:
        """Bytes received after the end of the message."""
        return bytes(self._connection.trailing_data[0]) + b"".join(self._pieces)

    def _check_line(self, piece: bytes) -> None:
        # When h11 needs more data, what it still buffers is the start of a line; it never buffers body data.
        line = self._connection.trailing_data[0]
        around_cut = line[-MAX_BLANKS:] + piece[:MAX_BLANKS]
        if line and _TOO_MANY in around_cut.translate(_AS_BLANKS):
            raise self._h11.RemoteProtocolError(f"{MAX_BLANKS} blanks in a row in a header")


def _cut_inside_runs(data: bytes) -> Iterator[bytes]:
    """Split the data inside each long run of blanks. After the first part, h11's buffer shows if it is in a line."""
    blanks, begin, position = data.translate(_AS_BLANKS), 0, 0
    while (run := blanks.find(_CUT_FROM, position)) >= 0:
        cut = run + len(_CUT_FROM) // 2
        yield data[begin:cut]
        begin, position = cut, _end_of_run(blanks, cut)
    yield data[begin:]


def _end_of_run(blanks: bytes, position: int) -> int:
    step = len(_CUT_FROM)
    while blanks.startswith(_CUT_FROM, position):
        position += step
    return position


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
