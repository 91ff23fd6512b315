"""SafeClient: an HTTP client that checks every hop against a policy and bounds time and size.

It uses no proxies, netrc or cookies and keeps no connections, so fetches share no state. `handle_fetch_json` is the
host side of a guest's `fetch()` and `curl`: JSON in, JSON out; guest input never raises out of it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import ssl
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from warmcell.core.errors import FetchFailed, NetworkingDisabled, SandboxError
from warmcell.core.types import check_timeout
from warmcell.net.connect.admission import AuditSink, DenialSink, Gate, Unreachable, as_guest_error
from warmcell.net.connect.connection_log import ConnectionLog
from warmcell.net.connect.dial import Dial, Resolver, SocketStream, client_tls, dial, open_stream
from warmcell.net.connect.http_exchange import Exchange
from warmcell.net.connect.limits import RateLimiter
from warmcell.net.credentials import Redactor, SecretUnavailable, clean_headers, refuse_hidden_echo, refuse_partial
from warmcell.net.fetch.body_decoder import BodyDecoder, accepted_codings
from warmcell.net.fetch.messages import FetchRequest, FetchResponse
from warmcell.net.optional_packages import need
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.net.rules.headers import (
    HeaderList,
    Headers,
    check_headers,
    replace_headers,
    without_body_headers,
    without_credentials,
    without_range_headers,
)
from warmcell.net.rules.rule_book import EgressRequest, Narrowing, compile_rules
from warmcell.net.rules.urls import Target, UrlError, parse_url, redirect_target

REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class Hop:
    """One request of a chain of redirects."""

    target: Target
    method: str
    headers: HeaderList
    body: bytes


class SafeClient:
    """Fetches what the policy allows. Safe to use from several tasks and event loops.

    `resolver`, `ssl_context` and `dial` are for tests and unusual hosts. `audit` gets one JSON line per decision. Pass
    a `limiter` to share one rate limit between clients.
    """

    def __init__(
        self,
        policy: FetchPolicy,
        *,
        resolver: Resolver | None = None,
        audit: AuditSink | None = None,
        on_denial: DenialSink | None = None,
        ssl_context: ssl.SSLContext | None = None,
        dial: Dial = dial,
        limiter: RateLimiter | None = None,
        gate: Gate | None = None,
        log: ConnectionLog | None = None,
    ) -> None:
        need("h11")
        self.policy = policy
        self._gate = gate or Gate(
            compile_rules(policy),
            limiter=limiter or RateLimiter(policy.rate_limit),
            resolver=resolver,
            audit=audit,
            on_denial=on_denial,
            log=log,
        )
        self._tls = cache(lambda: ssl_context or client_tls())
        self._dial = dial

    def narrow(self, narrowing: Narrowing) -> None:
        """Apply this narrowing to all later fetches, in place of an earlier one."""
        self._gate.rules = replace(self._gate.rules, narrowing=narrowing)

    async def fetch(self, request: FetchRequest | str) -> FetchResponse:
        """Fetch and return the response, whatever its status. Raises `FetchFailed` if it was refused or failed."""
        if isinstance(request, str):
            request = FetchRequest(request)
        hop = self._first_hop(request)
        timeout = self.policy.request_timeout
        if request.timeout is not None:
            timeout = min(timeout, check_timeout(request.timeout))
        redactor = Redactor()
        try:
            async with asyncio.timeout(timeout):
                return await self._follow(hop, request.follow_redirects, redactor)
        except TimeoutError:
            raise FetchFailed(f"the fetch did not finish within {timeout:g} s", reason="timeout") from None
        except (Unreachable, SecretUnavailable):
            raise
        except FetchFailed as error:
            raise FetchFailed(redactor.text(error.message), reason=error.reason, hint=error.hint) from None

    def fetch_blocking(self, request: FetchRequest | str) -> FetchResponse:
        """`fetch` for a thread without an event loop."""
        return asyncio.run(self.fetch(request))

    def _first_hop(self, request: FetchRequest) -> Hop:
        try:
            return _first_hop(request)
        except FetchFailed as error:
            self._gate.refuse_malformed(error.message, "fetch")
            raise

    def _next_hop(self, hop: Hop, status: int, location: str, redactor: Redactor) -> Hop:
        try:
            # Following the redirect would send the credential to that host; an error that quotes it would leak it.
            if redactor.text(location) != location:
                raise FetchFailed("the redirect repeats an injected credential", reason="refused")
            return _next_hop(hop, status, location)
        except FetchFailed as error:
            self._gate.refuse_malformed(error.message, "fetch redirect")
            raise

    async def _follow(self, hop: Hop, follow_redirects: bool, redactor: Redactor) -> FetchResponse:
        for _ in range(self.policy.max_redirects + 1):
            answer = await self._exchange(hop, follow_redirects, redactor)
            if isinstance(answer, FetchResponse):
                return answer
            hop = answer
        message = f"more than {self.policy.max_redirects} redirects, the last one to {hop.target.host}"
        raise FetchFailed(message, reason="refused", hint="raise max_redirects")

    async def _exchange(self, hop: Hop, follow_redirects: bool, redactor: Redactor) -> FetchResponse | Hop:
        target = hop.target
        request = EgressRequest(target.host, target.port, hop.method, target.path, in_clear=target.scheme == "http")
        with self._gate.log.track(request) as connection:
            addresses, decision = await self._gate.admit(request, "fetch")
            self._gate.refuse_steering(request, decision, hop.headers, "fetch")
            connection.allow(decision, addresses)
            headers = self._request_headers(hop, redactor)
            tls = self._tls() if target.scheme == "https" else None
            stream = await open_stream(target.host, target.port, addresses, tls, self._dial)
            connection.attach(stream)
            try:
                answer = await self._send(stream, hop, headers, follow_redirects, redactor)
            except FetchFailed:
                connection.check()
                raise
            connection.check()
            return answer

    async def _send(
        self, stream: SocketStream, hop: Hop, headers: HeaderList, follow_redirects: bool, redactor: Redactor
    ) -> FetchResponse | Hop:
        try:
            exchange = Exchange(stream)
            await exchange.send_head(hop.method, hop.target.request_target, headers)
            await exchange.send_body(hop.body)
            await exchange.finish()
            status, found = await exchange.read_head()
            location = next((value for name, value in found if name.lower() == "location"), None)
            if follow_redirects and status in REDIRECTS and location is not None:
                return self._next_hop(hop, status, location, redactor)
            return await self._response(hop, exchange, status, found, redactor)
        finally:
            stream.close()

    def _request_headers(self, hop: Hop, redactor: Redactor) -> HeaderList:
        secrets: dict[str, str] = {}
        in_clear = hop.target.scheme == "http"
        for name, reference in self._gate.rules.headers_for(hop.target.host, in_clear=in_clear).items():
            secret, secrets[name] = reference.reveal()
            redactor.add([secret])
        headers = replace_headers(without_range_headers(hop.headers) if secrets else hop.headers, secrets)
        present = {name.lower() for name, _ in headers}
        defaults = {"Accept": "*/*", "Accept-Encoding": accepted_codings(), "User-Agent": "warmcell"}
        headers = [pair for pair in defaults.items() if pair[0].lower() not in present] + headers
        if hop.body or hop.method in ("POST", "PUT", "PATCH"):
            headers.append(("Content-Length", str(len(hop.body))))
        return [("Host", hop.target.authority), *headers, ("Connection", "close")]

    async def _response(
        self, hop: Hop, exchange: Exchange, status: int, found: HeaderList, redactor: Redactor
    ) -> FetchResponse:
        headers = Headers(found)
        refuse_partial(redactor, status, headers)
        decoder = BodyDecoder(headers.get("content-encoding", ""), self.policy.max_body_bytes)
        if not decoder.is_decoding and hop.method != "HEAD":
            self._refuse_announced_size(headers)
            refuse_hidden_echo(redactor, headers)
        body = bytearray()
        async with contextlib.aclosing(exchange.read_body()) as arriving:
            async for data in arriving:
                for piece in decoder.feed(data):
                    body += piece
        decoder.finish()
        kept = redactor.data(bytes(body))
        if (decoder.is_decoding and hop.method != "HEAD") or len(kept) != len(body):
            found = [pair for pair in found if pair[0].lower() not in ("content-encoding", "content-length")]
        return FetchResponse(status, Headers(clean_headers(redactor, found)), kept, redactor.text(hop.target.url))

    def _refuse_announced_size(self, headers: Headers) -> None:
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self.policy.max_body_bytes:
            message = f"the response body of {announced} bytes is larger than {self.policy.max_body_bytes} bytes"
            raise FetchFailed(message, reason="too_large", hint="raise max_body_bytes")


def _first_hop(request: FetchRequest) -> Hop:
    if not isinstance(request.method, str):
        raise FetchFailed("the method must be text", reason="invalid")
    if request.body is not None and not isinstance(request.body, str | bytes | bytearray | memoryview):
        raise FetchFailed(f"the body must be bytes or text, not {type(request.body).__name__}", reason="invalid")
    headers = check_headers(request.headers)
    try:
        return Hop(parse_url(request.url), request.method.upper(), headers, request.body_bytes)
    except UrlError as error:
        raise FetchFailed(f"the URL is refused: {error}", reason="invalid") from None


def _next_hop(hop: Hop, status: int, location: str) -> Hop:
    try:
        # Servers send UTF-8 in Location, which was decoded as Latin-1.
        text = location.encode("latin-1").decode("utf-8", "replace")
        target = redirect_target(hop.target, text)
    except UrlError as error:
        raise FetchFailed(f"the redirect is refused: {error}", reason="refused") from None
    if hop.target.scheme == "https" and target.scheme != "https":
        raise FetchFailed(f"the redirect from https to http on {target.host} is refused", reason="refused")
    following = replace(hop, target=target)
    if target.origin != hop.target.origin:
        following = replace(following, headers=without_credentials(following.headers))
    becomes_get = (status == 303 and hop.method != "HEAD") or (status in (301, 302) and hop.method == "POST")
    if becomes_get:
        following = replace(following, method="GET", body=b"", headers=without_body_headers(following.headers))
    return following


MAX_REQUEST_BYTES = 16 * 1024 * 1024
_KEYS = frozenset({"url", "method", "headers", "body", "timeout", "follow_redirects"})


class HostCallError(ValueError):
    """The bytes are not a valid request. The caller returns -1 to the guest."""


async def handle_fetch_json(client: SafeClient | None, request: bytes) -> bytes:
    """Handle one fetch of a guest. Without a client, the response says how to enable networking."""
    if client is None:
        return networking_disabled()
    parsed = parse_request(request)
    try:
        return _response(await client.fetch(parsed))
    except FetchFailed as error:
        guest_error = as_guest_error(error)
        return error_json(guest_error.reason, str(guest_error))
    except SandboxError as error:
        return error_json("invalid", str(error))


def parse_request(request: bytes) -> FetchRequest:
    """Parse a JSON request. Raises `HostCallError`."""
    if len(request) > MAX_REQUEST_BYTES:
        raise HostCallError(f"the request is larger than {MAX_REQUEST_BYTES} bytes")
    try:
        data = json.loads(request)
    except (ValueError, RecursionError) as error:
        raise HostCallError(f"the request is not JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("url"), str):
        raise HostCallError("the request is not an object with a url")
    unknown = sorted(set(data) - _KEYS)
    if unknown:
        raise HostCallError(f"unknown key {unknown[0]!r}")
    return _build_request(data)


def _build_request(data: dict[str, Any]) -> FetchRequest:
    data = {key: value for key, value in data.items() if value is not None}
    method, headers = data.get("method", "GET"), data.get("headers", {})
    timeout, follow = data.get("timeout"), data.get("follow_redirects", True)
    if not isinstance(method, str) or not isinstance(headers, dict) or not isinstance(follow, bool):
        raise HostCallError("method, headers or follow_redirects has the wrong type")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise HostCallError("timeout must be a number of seconds")
    body = _decode_body(data.get("body"))
    return FetchRequest(data["url"], method, headers, body, timeout=timeout, follow_redirects=follow)


def _decode_body(body: object) -> bytes | None:
    if body is None:
        return None
    if not isinstance(body, str):
        raise HostCallError("body must be base64 text")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise HostCallError("body is not base64") from None


def _response(response: FetchResponse) -> bytes:
    return _to_json(
        {
            "status": response.status,
            "headers": dict(response.headers),
            "body": base64.b64encode(response.body).decode("ascii"),
            "url": response.url,
        }
    )


def error_json(reason: str, message: str) -> bytes:
    """An error response for the guest; `reason` becomes a code such as `fetch.timeout`."""
    return _to_json({"error": {"code": f"fetch.{reason}", "message": message}})


def networking_disabled() -> bytes:
    """The response for a guest without network; the call itself returns -2."""
    return error_json("refused", str(NetworkingDisabled()))


def _to_json(data: dict[str, Any]) -> bytes:
    return json.dumps(data).encode()
