"""Forwards one HTTP request of a guest over its own connection and relays the response.

The request is parsed and re-serialised, so the server reads exactly what was checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from warmcell.core.errors import FetchFailed
from warmcell.net.connect.admission import Gate
from warmcell.net.connect.byte_streams import ByteStream
from warmcell.net.connect.dial import Dial, open_stream
from warmcell.net.connect.http_exchange import Exchange
from warmcell.net.connect.incoming_http import IncomingHttp
from warmcell.net.connect.unreachable import as_guest_error
from warmcell.net.credentials import Redactor, StreamRedactor, clean_headers, refuse_hidden_echo, refuse_partial
from warmcell.net.optional_packages import need
from warmcell.net.proxy.limits import ActivityTimer, ByteMeter, ProxyLimits
from warmcell.net.proxy.request_head import MAX_HEAD_BYTES, RequestHead
from warmcell.net.rules.headers import OURS, HeaderList, Headers, replace_headers, without_range_headers
from warmcell.net.rules.rule_book import EgressRequest
from warmcell.net.rules.urls import Target

STATUS_OF = {
    "refused": HTTPStatus.FORBIDDEN,
    "rate_limited": HTTPStatus.TOO_MANY_REQUESTS,
    "invalid": HTTPStatus.BAD_REQUEST,
    "timeout": HTTPStatus.GATEWAY_TIMEOUT,
}


@dataclass(frozen=True, slots=True)
class EgressContext:
    """What every outgoing request needs."""

    gate: Gate
    limits: ProxyLimits
    tls: Callable[[], ssl.SSLContext]
    dial: Dial


def refusal(error: FetchFailed) -> bytes:
    """A complete HTTP response that tells the guest's program what was refused and why."""
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
        self._guest = guest
        self._egress = egress
        self._via = via
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
                connection.carry(upstream, self._guest)
                await self._exchange(Exchange(upstream), head, target, headers)
            finally:
                upstream.close()

    def _request_headers(self, head: RequestHead, target: Target) -> HeaderList:
        listed = {part.strip().lower() for part in (head.get("connection") or "").split(",")}
        headers = [pair for pair in head.headers if pair[0].lower() not in OURS | listed]
        secrets: dict[str, str] = {}
        injected = self._egress.gate.rules.headers_for(target.host, in_clear=target.scheme == "http")
        for name, reference in injected.items():
            secret, secrets[name] = reference.reveal()
            self._redactor.add([secret])
        if secrets:
            # The secret could not be found in a compressed response.
            headers = replace_headers(without_range_headers(headers), {**secrets, "Accept-Encoding": "identity"})
        framing = [pair for pair in head.headers if pair[0].lower() in ("content-length", "transfer-encoding")]
        return [("Host", target.authority), *headers, *framing, ("Connection", "close")]

    async def _exchange(self, exchange: Exchange, head: RequestHead, target: Target, headers: HeaderList) -> None:
        await exchange.send_head(head.method, target.request_target, headers)
        try:
            async with asyncio.TaskGroup() as both:
                sending = both.create_task(self._send_body(exchange))
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
                go_on = self._h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
                await self._guest.write(self._conn.send(go_on))
            try:
                self._incoming.feed(await self._guest.read())
            except OSError as error:
                raise FetchFailed(f"the guest went away: {error}", reason="connect") from None

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
            raise FetchFailed(f"the guest went away: {error}", reason="connect") from None
