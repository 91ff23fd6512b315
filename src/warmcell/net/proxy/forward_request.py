"""Forwards one HTTP request of a guest over its own connection and relays the response.

The request is parsed and re-serialised, so the server reads exactly what was checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any

from warmcell.core.errors import FetchFailed
from warmcell.core.types import MIB
from warmcell.net.connect.admission import Gate, as_guest_error
from warmcell.net.connect.dial import ByteStream, Dial, open_stream
from warmcell.net.connect.http_exchange import Exchange, IncomingHttp
from warmcell.net.credentials import Redactor, StreamRedactor, clean_headers, refuse_hidden_echo, refuse_partial
from warmcell.net.optional_packages import need
from warmcell.net.rules.headers import RESERVED, HeaderList, Headers, replace_headers, without_range_headers
from warmcell.net.rules.rule_book import EgressRequest
from warmcell.net.rules.urls import Target


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Limits per connection (seconds, bytes in each direction) and on the number of connections.

    Only TLS is accepted on `tls_ports` and only HTTP on `http_ports`; tunnels to other allowed ports are opaque.
    """

    connections: int = 128
    max_bytes: int = 2048 * MIB
    head_seconds: float = 10.0
    idle_seconds: float = 120.0
    total_seconds: float = 1800.0
    tls_ports: frozenset[int] = frozenset({443})
    http_ports: frozenset[int] = frozenset({80})


class ByteMeter:
    """Counts the bytes of one direction; raises `FetchFailed` over the limit."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._max_bytes = max_bytes

    def add(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise FetchFailed(f"the connection carried more than {self._max_bytes} bytes", reason="too_large")


class ActivityTimer:
    """An idle timeout that `touch` extends, up to a total. Raises `TimeoutError`."""

    def __init__(self, idle_seconds: float, total_seconds: float) -> None:
        self._idle = idle_seconds
        self._total = total_seconds
        self._end = 0.0
        self._moved_at = 0.0
        self._timeout: asyncio.Timeout | None = None

    async def __aenter__(self) -> ActivityTimer:
        now = asyncio.get_running_loop().time()
        self._end = now + self._total
        self._moved_at = now
        self._timeout = asyncio.timeout_at(min(now + self._idle, self._end))
        await self._timeout.__aenter__()
        return self

    def touch(self) -> None:
        assert self._timeout is not None
        now = asyncio.get_running_loop().time()
        # Rescheduling is not free, and a busy tunnel touches thousands of times a second.
        if now - self._moved_at < self._idle / 16 or self._timeout.expired():
            return
        self._moved_at = now
        self._timeout.reschedule(min(now + self._idle, self._end))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._timeout is not None
        await self._timeout.__aexit__(kind, error, trace)


MAX_HEAD_BYTES = 64 * 1024
MAX_HEAD_LINES = 256

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]{1,16384}) HTTP/1\.([01])")
# One character class each: a guest cannot exploit backtracking.
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\x20-\x7e\x80-\xff\t]*")
_ONCE = ("host", "content-length", "transfer-encoding")


class HeadError(ValueError):
    """The head is refused; nothing was forwarded."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request line and its header fields. The method is in upper case."""

    method: str
    target: str
    minor_version: int
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


def parse_head(raw: bytes) -> RequestHead:
    """Parse a head that ends with an empty line, strictly, so that proxy and server agree on where a message ends.

    Pure. Raises `HeadError`.
    """
    lines = raw.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if len(lines) > MAX_HEAD_LINES:
        raise HeadError(f"more than {MAX_HEAD_LINES} header lines")
    first = _REQUEST_LINE.fullmatch(lines[0])
    if first is None:
        raise HeadError("malformed request line")
    method, target, minor = first.groups()
    head = RequestHead(method.decode().upper(), target.decode(), int(minor), tuple(_field(line) for line in lines[1:]))
    _check_framing(head)
    return head


def _field(line: bytes) -> tuple[str, str]:
    if line[:1] in (b" ", b"\t"):
        raise HeadError("a folded header line")
    name, colon, value = line.partition(b":")
    if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise HeadError("malformed header line")
    return name.decode("ascii"), value.strip(b" \t").decode("latin-1")


def _check_framing(head: RequestHead) -> None:
    names = [name.lower() for name, _ in head.headers]
    for name in _ONCE:
        if names.count(name) > 1:
            raise HeadError(f"more than one {name} header")
    if "content-length" in names and "transfer-encoding" in names:
        raise HeadError("both content-length and transfer-encoding")
    length, coding = head.get("content-length"), head.get("transfer-encoding")
    if length is not None and not re.fullmatch(r"[0-9]{1,18}", length):
        raise HeadError("malformed content-length")
    if coding is not None and (coding.lower() != "chunked" or head.minor_version == 0):
        raise HeadError("a transfer-encoding other than chunked")
    if head.minor_version == 1 and "host" not in names:
        raise HeadError("no host header")


STATUS_OF = {
    "refused": HTTPStatus.FORBIDDEN,
    "rate_limited": HTTPStatus.TOO_MANY_REQUESTS,
    "invalid": HTTPStatus.BAD_REQUEST,
    "timeout": HTTPStatus.GATEWAY_TIMEOUT,
}


@dataclass(frozen=True, slots=True)
class EgressContext:
    """What all outgoing requests of a proxy share."""

    gate: Gate
    limits: ProxyLimits
    tls: Callable[[], ssl.SSLContext]
    dial: Dial


def refusal(error: FetchFailed) -> bytes:
    """A complete HTTP response that says what was refused and why."""
    error = as_guest_error(error)
    status = STATUS_OF.get(error.reason, HTTPStatus.BAD_GATEWAY)
    body = f"warmcell: {error}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nX-Warmcell-Error: {error.reason}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


class RequestForwarder:
    """Forwards one request. `run` returns what the guest sent after it, or None if the connection must close."""

    def __init__(self, guest: ByteStream, egress: EgressContext, via: str) -> None:
        self._h11 = need("h11")
        self._guest, self._egress, self._via = guest, egress, via
        self._conn = self._h11.Connection(self._h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._incoming = IncomingHttp(self._conn)
        self._redactor = Redactor()
        self._has_answered = False
        self._timer = ActivityTimer(egress.limits.idle_seconds, egress.limits.total_seconds)

    async def run(self, raw_head: bytes, early: bytes, head: RequestHead, target: Target) -> bytes | None:
        try:
            # `parse_head` has rejected the input on which h11 takes quadratic time.
            self._conn.receive_data(raw_head)
            self._conn.next_event()
            if early:
                self._incoming.feed(early)
            async with self._timer:
                await self._forward(head, target)
        except TimeoutError:
            await self._fail(FetchFailed("the request timed out", reason="timeout"))
        except FetchFailed as error:
            await self._fail(error)
        except (self._h11.RemoteProtocolError, self._h11.LocalProtocolError) as error:
            await self._fail(FetchFailed(f"malformed request: {error}", reason="invalid"))
        return self._trailing_bytes()

    def _trailing_bytes(self) -> bytes | None:
        done = self._h11.DONE
        if self._conn.our_state is not done or self._conn.their_state is not done:
            return None
        return self._incoming.trailing_bytes()

    async def _fail(self, error: FetchFailed) -> None:
        if not self._has_answered:
            error = as_guest_error(error)
            clean = FetchFailed(self._redactor.text(error.message), reason=error.reason, hint=error.hint)
            with contextlib.suppress(OSError):
                await self._guest.write(refusal(clean))
        else:
            # A truncated response must not look complete.
            self._guest.close()

    async def _forward(self, head: RequestHead, target: Target) -> None:
        gate = self._egress.gate
        request = EgressRequest(target.host, target.port, head.method, target.path, in_clear=target.scheme == "http")
        with gate.log.track(request) as connection:
            addresses, decision = await gate.admit(request, self._via)
            gate.refuse_steering(request, decision, head.headers, self._via)
            connection.allow(decision, addresses)
            headers = self._request_headers(head, target)
            tls = self._egress.tls() if target.scheme == "https" else None
            upstream = await open_stream(target.host, target.port, addresses, tls, self._egress.dial)
            try:
                connection.attach(upstream, self._guest)
                await self._exchange(Exchange(upstream), head, target, headers)
            finally:
                upstream.close()

    def _request_headers(self, head: RequestHead, target: Target) -> HeaderList:
        listed = {part.strip().lower() for part in (head.get("connection") or "").split(",")}
        headers = [pair for pair in head.headers if pair[0].lower() not in RESERVED | listed]
        secrets: dict[str, str] = {}
        injected = self._egress.gate.rules.headers_for(target.host, in_clear=target.scheme == "http")
        for name, reference in injected.items():
            secret, secrets[name] = reference.reveal()
            self._redactor.add([secret])
        if secrets:
            # Redaction does not find secrets in a compressed response.
            headers = replace_headers(without_range_headers(headers), {**secrets, "Accept-Encoding": "identity"})
        framing = [pair for pair in head.headers if pair[0].lower() in ("content-length", "transfer-encoding")]
        return [("Host", target.authority), *headers, *framing, ("Connection", "close")]

    async def _exchange(self, exchange: Exchange, head: RequestHead, target: Target, headers: HeaderList) -> None:
        await exchange.send_head(head.method, target.request_target, headers)
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send_body(exchange))
                status, found = await exchange.read_head()
                await self._answer(exchange, status, found)
                # The response is complete; the rest of the request body is not needed.
                sending.cancel()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _send_body(self, exchange: Exchange) -> None:
        meter = ByteMeter(self._egress.limits.max_bytes)
        while True:
            event = await self._guest_event()
            self._timer.touch()
            if isinstance(event, self._h11.Data):
                meter.add(len(event.data))
                await exchange.send_body(bytes(event.data))
            else:
                await exchange.finish()
                return

    async def _guest_event(self) -> Any:
        while True:
            event = self._incoming.next_event()
            if event is not self._h11.NEED_DATA:
                return event
            if self._conn.they_are_waiting_for_100_continue and not self._has_answered:
                interim = self._h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
                await self._guest.write(self._conn.send(interim))
            try:
                self._incoming.feed(await self._guest.read())
            except OSError as error:
                raise FetchFailed(f"the guest closed the connection: {error}", reason="connect") from None

    async def _answer(self, exchange: Exchange, status: int, found: HeaderList) -> None:
        await self._send(self._response(status, found))
        meter, redactor = ByteMeter(self._egress.limits.max_bytes), StreamRedactor(self._redactor)
        async with contextlib.aclosing(exchange.read_body()) as arriving:
            async for data in arriving:
                self._timer.touch()
                meter.add(len(data))
                await self._send_data(redactor.feed(data))
        await self._send_data(redactor.finish())
        await self._send(self._h11.EndOfMessage())

    def _response(self, status: int, found: HeaderList) -> Any:
        dropped = {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "trailer", "te"}
        if self._redactor:
            refuse_partial(self._redactor, status, Headers(found))
            refuse_hidden_echo(self._redactor, Headers(found))
            dropped.add("content-length")
        headers = [pair for pair in clean_headers(self._redactor, found) if pair[0].lower() not in dropped]
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        reason = HTTPStatus(status).phrase.encode() if status in HTTPStatus._value2member_map_ else b""
        return self._h11.Response(status_code=status, headers=encoded, reason=reason)

    async def _send_data(self, data: bytes) -> None:
        if data:
            await self._send(self._h11.Data(data=data))

    async def _send(self, event: Any) -> None:
        self._has_answered = True
        try:
            await self._guest.write(self._conn.send(event) or b"")
        except OSError as error:
            raise FetchFailed(f"the guest closed the connection: {error}", reason="connect") from None
