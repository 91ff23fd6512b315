"""One client connection: HTTP/1.1 by h11. Some requests take it over as a raw stream (`Upgrade: tcp`).

uvicorn has no way to hand over the connection, which `attach` and `exec` need.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import select
import struct
import termios
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from urllib.parse import parse_qs, unquote, urlsplit

import h11

from warmcell.core.errors import SandboxError
from warmcell.core.light import on_error
from warmcell.interfaces.docker.messages import (
    Answer,
    DockerError,
    Hijack,
    Request,
    Response,
    error_response,
    refusal_of,
)
from warmcell.interfaces.serve.http_protocol import ChunkLimit, ConnectionShares
from warmcell.lifetime.threads import cancel_and_wait

_log = logging.getLogger("warmcell.docker")
_MAX_HEAD = 32 << 10
_MAX_BODY = 4 << 20
#: The limit for all large bodies of requests in progress together; bodies up to the second size are not counted.
_MAX_LARGE_BODIES, _SMALL_BODY = 64 << 20, 64 << 10
_CHUNK = 1 << 16
#: How long a connection may be idle, and how long a client may take for a request's head.
_IDLE_SECONDS, _HEAD_SECONDS = 300.0, 30.0
#: How much is read of a body after its request was refused.
_MAX_DRAINED, _DRAIN_SECONDS = 64 << 20, 5.0
#: How long to wait until a client has read the head of a hijacked response.
_HANDOVER_SECONDS, _LOOK_SECONDS = 15.0, 0.001

#: How often to check whether a client that has sent everything still reads.
_HANGUP_SECONDS = 0.5


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class LargeBodies:
    """Counts the bytes of large bodies of requests in progress, over all connections."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, size: int) -> None:
        if self.total + size > _MAX_LARGE_BODIES:
            raise DockerError(503, "too many large requests at the same time; try again")
        self.total += size


class Connection:
    """Serves the requests of one client, one after another. A disconnect cancels the request."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_streamed: Callable[[Request], bool],
        answer: Callable[[Request], Awaitable[Answer]],
        large_bodies: LargeBodies,
        shares: ConnectionShares,
    ) -> None:
        """`is_streamed`: whether a request's handler reads the body itself. `large_bodies`, `shares`: the server's."""
        self._reader, self._writer = reader, writer
        self._is_streamed, self._answer = is_streamed, answer
        self._large_bodies, self._shares = large_bodies, shares
        #: The bytes counted in `large_bodies` for the request in progress.
        self._counted = 0
        #: What arrived together with the request of a hijacked connection.
        self._early = b""
        self._http = ChunkLimit(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)

    async def serve(self) -> None:
        try:
            while await self._serve_one():
                self._http.start_next_cycle()
        except (ClientGone, ConnectionError, TimeoutError):
            pass  # the client is gone, so no response can be sent
        except h11.RemoteProtocolError as error:
            await self._refuse_bad_request(error)
        finally:
            self._writer.close()

    async def _serve_one(self) -> bool:
        """Serve one request. Return whether the client may send another."""
        self._shares.mark_idle(self)
        head = await self._read_head()
        self._shares.mark_busy(self)
        if head is None:
            return False
        request = _request_of(head, self)
        try:
            if not self._is_streamed(request):
                request.body = await self._read_body(request)
            answer = await self._run_watched(request)
        except DockerError as error:
            answer = error_response(error)
        finally:
            self._large_bodies.total -= self._counted
            self._counted = 0
        if isinstance(answer, Hijack):
            await self._hand_over(request, answer)
            return False
        await self._send(request, answer)
        await self._drain_body()
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    # ---- requests ----

    async def _read_head(self) -> h11.Request | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _IDLE_SECONDS
        is_begun = False
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                return None
            async with asyncio.timeout_at(deadline):
                self._http.receive_data(await self._reader.read(_CHUNK))
            if not is_begun:  # for the whole head: a byte now and then must not hold a connection for days
                is_begun, deadline = True, loop.time() + _HEAD_SECONDS

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body of the request in progress, as it arrives."""
        while data := await self._next_data():
            yield data

    async def _next_data(self) -> bytes:
        """Read the next piece of the request's body; empty at its end."""
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if isinstance(event, h11.EndOfMessage) or event is h11.PAUSED:
                return b""
            if event is not h11.NEED_DATA:
                raise ClientGone
            if self._http.they_are_waiting_for_100_continue:
                await self.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            try:
                async with asyncio.timeout(_IDLE_SECONDS):
                    self._http.receive_data(await self._reader.read(_CHUNK))
            except TimeoutError:
                raise ClientGone from None

    async def _read_body(self, request: Request) -> bytes:
        body = bytearray()
        async with asyncio.timeout(_IDLE_SECONDS):
            async for chunk in self.chunks():
                body += chunk
                if len(body) > _MAX_BODY:
                    raise DockerError(413, f"the body of {request.path} is larger than {_MAX_BODY} bytes")
                if len(body) > _SMALL_BODY:
                    self._large_bodies.add(len(body) - self._counted)
                    self._counted = len(body)
        return bytes(body)

    async def _drain_body(self) -> None:
        """Read some of a refused body: a client that is still sending would not see the response."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                left = _MAX_DRAINED
                while left > 0 and self._http.their_state is h11.SEND_BODY and (data := await self._next_data()):
                    left -= len(data)

    async def _run_watched(self, request: Request) -> Answer:
        """Return the handler's answer. A disconnect cancels it, even before the body was sent."""
        handling = asyncio.ensure_future(self._handle(request))
        watching = asyncio.ensure_future(
            self.wait_for_hangup() if self._is_streamed(request) else self._wait_for_close()
        )
        try:
            await asyncio.wait({handling, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not handling.done() and watching.result():
                await cancel_and_wait(handling)
                raise ClientGone
            return await asyncio.shield(handling)
        except asyncio.CancelledError:
            await cancel_and_wait(handling)
            raise
        finally:
            await cancel_and_wait(watching)

    async def _wait_for_close(self) -> bool:
        """Wait until the client closes; return True. What it sends meanwhile is kept for its next request."""
        if data := await self._reader.read(_CHUNK):
            self._http.receive_data(data)
            await self.wait_for_hangup()
        return True

    async def wait_for_hangup(self) -> bool:
        """Wait until the client cannot read any more; return True. asyncio only reports the end of input."""
        connected = self._writer.get_extra_info("socket")
        while connected.fileno() >= 0 and not _has_hung_up(connected.fileno()):
            await asyncio.sleep(_HANGUP_SECONDS)
        return True

    async def _handle(self, request: Request) -> Answer:
        try:
            return await self._answer(request)
        except DockerError as error:
            return error_response(error)
        except SandboxError as error:
            return error_response(refusal_of(error))
        except (ClientGone, ConnectionError, h11.RemoteProtocolError):
            raise
        except Exception as error:
            _log.error("%s %s failed:\n%s", request.method, request.path, traceback.format_exc())
            return error_response(DockerError(500, f"internal error: {type(error).__name__}"))

    # ---- responses ----

    async def _send(self, request: Request, response: Response) -> None:
        headers = list(response.headers.items())
        if response.chunks is None:
            has_no_length = response.status in (204, 304)
            is_bodyless = has_no_length or request.method == "HEAD"
            headers += [] if has_no_length else [("content-length", str(len(response.body)))]
            await self._send_head(response.status, headers)
            body = b"" if is_bodyless or not response.body else self._http.send(h11.Data(data=response.body))
            await self.write((body or b"") + (self._http.send(h11.EndOfMessage()) or b""))
            return
        headers.append(("transfer-encoding", "chunked"))
        async with aclosing(response.chunks) as chunks:  # type: ignore[type-var]
            await self._send_head(response.status, headers)
            await self._send_stream(chunks, response.stall_seconds)

    async def _send_head(self, status: int, headers: list[tuple[str, str]]) -> None:
        if self._http.their_state is not h11.DONE:  # the rest of the body was not read
            headers.append(("connection", "close"))
        await self.write(self._http.send(h11.Response(status_code=status, headers=[*headers, *_COMMON])))

    async def _send_stream(self, chunks: AsyncIterator[bytes], stall_seconds: float | None) -> None:
        """Send a stream. A disconnect ends it, even while there is nothing to send."""

        async def write(event: h11.Data | h11.EndOfMessage) -> None:
            try:
                async with asyncio.timeout(stall_seconds):
                    await self.write(self._http.send(event))
            except TimeoutError:
                self._writer.transport.abort()
                raise ClientGone from None

        async def send() -> None:
            async for chunk in chunks:
                if chunk:
                    await write(h11.Data(data=chunk))
            await write(h11.EndOfMessage())

        working, watching = asyncio.ensure_future(send()), asyncio.ensure_future(self._wait_for_close())
        try:
            done, _ = await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if working not in done:
                raise ClientGone
            working.result()
        except (DockerError, SandboxError) as error:  # the head is sent: the client sees that the body is incomplete
            _log.warning("a response was cut short: %s", error)
            raise ClientGone from None
        finally:
            await cancel_and_wait(working, watching)

    async def _hand_over(self, request: Request, hijack: Hijack) -> None:
        kind = ("content-type", hijack.content_type)
        if "upgrade" in request.headers:
            headers = [kind, ("connection", "Upgrade"), ("upgrade", "tcp")]
            head = self._http.send(h11.InformationalResponse(status_code=101, headers=headers, reason="UPGRADED"))
        else:
            head = f"HTTP/1.1 200 OK\r\nContent-Type: {hijack.content_type}\r\n\r\n".encode()
        with on_error(hijack.on_disconnect):
            await self.write(head)
            await self._wait_until_read()
        self._early = self._http.trailing_data[0]
        await hijack.run(self)
        with suppress(OSError):
            self._writer.write_eof()

    async def _wait_until_read(self) -> None:
        """Wait until the client has read the head from the socket.

        The Docker SDK for Python parses it with a buffer that it then discards, with everything that came after it.
        """
        connected = self._writer.get_extra_info("socket")
        with suppress(TimeoutError):
            async with asyncio.timeout(_HANDOVER_SECONDS):
                while connected.fileno() >= 0 and _unread_bytes(connected.fileno()):
                    await asyncio.sleep(_LOOK_SECONDS)

    async def _refuse_bad_request(self, error: h11.RemoteProtocolError) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = error_response(DockerError(error.error_status_hint, f"bad request: {error}"))
            with suppress(ConnectionError, h11.LocalProtocolError):
                headers = [*response.headers.items(), ("content-length", str(len(response.body)))]
                await self.write(self._http.send(h11.Response(status_code=response.status, headers=headers)))
                await self.write(self._http.send(h11.Data(data=response.body)))

    async def read(self) -> bytes:
        """Read what the client of a hijacked connection sent; empty at its end."""
        early, self._early = self._early, b""
        if early:
            return early
        try:
            return await self._reader.read(_CHUNK)
        except ConnectionError:
            return b""

    async def write(self, data: bytes | None) -> None:
        if data:
            self._writer.write(data)
            await self._writer.drain()


_COMMON = [("api-version", "1.47"), ("docker-experimental", "false"), ("ostype", "linux"), ("server", "warmcell")]


def _request_of(head: h11.Request, stream: Connection) -> Request:
    try:
        target = urlsplit(head.target.decode("ascii"))
        query = parse_qs(target.query, keep_blank_values=True, max_num_fields=200)
    except ValueError:
        raise h11.RemoteProtocolError("malformed target, or too many query parameters") from None
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
    return Request(head.method.decode("ascii"), unquote(target.path), query, headers, stream)


def _unread_bytes(descriptor: int) -> int:
    """How many bytes the peer has not read yet. For Unix sockets this is what SIOCOUTQ returns."""
    (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, struct.pack("i", 0)))
    return int(count)


def _has_hung_up(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))
