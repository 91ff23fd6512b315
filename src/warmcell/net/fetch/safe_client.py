"""SafeClient: one fetch, judged hop by hop, bounded in time and size.

It knows no proxies, no netrc, no cookies and keeps no connections: nothing of one fetch is there for the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass, replace

from warmcell.core.errors import FetchFailed
from warmcell.core.types import check_timeout
from warmcell.net.connect.admission import AuditSink, DenialSink, Gate
from warmcell.net.connect.dial import Dial, client_tls, dial, open_stream
from warmcell.net.connect.http_exchange import Exchange
from warmcell.net.connect.name_lookup import Resolver
from warmcell.net.connect.rate_limiter import RateLimiter
from warmcell.net.connect.unreachable import Unreachable
from warmcell.net.credentials import Redactor, clean_headers, refuse_hidden_echo, refuse_partial
from warmcell.net.fetch.body_decoder import BodyDecoder, accepted_codings
from warmcell.net.fetch.messages import FetchRequest, FetchResponse
from warmcell.net.optional_packages import need
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.net.rules.headers import (
    HeaderList,
    Headers,
    across_origins,
    asking_for_all,
    checked_headers,
    replaced,
    steering_header,
    without_body,
)
from warmcell.net.rules.rule_book import Ask, Decision, compile_rules
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
    """Fetches what the policy allows. Safe to use from several tasks and event loops; holds no connection open.

    `resolver`, `ssl_context` and `dial` are for tests and unusual hosts; `audit` gets one JSON line per decision; a
    `limiter` that is handed in is shared with whoever else has it.
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
    ) -> None:
        need("h11")
        self.policy = policy
        self._gate = gate or Gate(
            compile_rules(policy),
            limiter=limiter or RateLimiter(policy.rate_limit),
            resolver=resolver,
            audit=audit,
            on_denial=on_denial,
        )
        self._tls = ssl_context
        self._dial = dial

    async def fetch(self, request: FetchRequest | str) -> FetchResponse:
        """The response, whatever its status; `FetchFailed` when it was refused or did not arrive."""
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
        except Unreachable:
            raise
        except FetchFailed as error:
            raise FetchFailed(redactor.text(error.message), reason=error.reason, hint=error.hint) from None

    def fetch_blocking(self, request: FetchRequest | str) -> FetchResponse:
        """The same for a thread without an event loop."""
        return asyncio.run(self.fetch(request))

    def _first_hop(self, request: FetchRequest) -> Hop:
        try:
            return _first_hop(request)
        except FetchFailed as error:
            self._gate.refuse_unread(error.message, "fetch")
            raise

    def _next_hop(self, hop: Hop, status: int, location: str, redactor: Redactor) -> Hop:
        try:
            # Followed, it would hand the credential to whoever is named there; quoted, to whoever reads the error.
            if redactor.text(location) != location:
                raise FetchFailed("the redirect repeats an injected credential", reason="refused")
            return _next_hop(hop, status, location)
        except FetchFailed as error:
            self._gate.refuse_unread(error.message, "fetch redirect")
            raise

    async def _follow(self, hop: Hop, follow_redirects: bool, redactor: Redactor) -> FetchResponse:
        for _ in range(self.policy.max_redirects + 1):
            answer = await self._exchange(hop, follow_redirects, redactor)
            if isinstance(answer, FetchResponse):
                return answer
            hop = answer
        raise FetchFailed(
            f"more than {self.policy.max_redirects} redirects, the last one to {hop.target.host}",
            reason="refused",
            hint="raise max_redirects",
        )

    async def _exchange(self, hop: Hop, follow_redirects: bool, redactor: Redactor) -> FetchResponse | Hop:
        target = hop.target
        ask = Ask(target.host, target.port, hop.method, target.path, in_clear=target.scheme == "http")
        addresses, decision = await self._gate.admit(ask, "fetch")
        self._refuse_steering(ask, decision, hop.headers)
        headers = self._with_ours(hop, redactor)
        tls = self._tls_context() if target.scheme == "https" else None
        stream = await open_stream(target.host, target.port, addresses, tls, self._dial)
        try:
            exchange = Exchange(stream)
            await exchange.send_head(hop.method, target.request_target, headers)
            await exchange.send_body(hop.body)
            await exchange.finish()
            status, found = await exchange.read_head()
            location = next((value for name, value in found if name.lower() == "location"), None)
            if follow_redirects and status in REDIRECTS and location is not None:
                return self._next_hop(hop, status, location, redactor)
            return await self._response(hop, exchange, status, found, redactor)
        finally:
            stream.close()

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = client_tls()
        return self._tls

    def _refuse_steering(self, ask: Ask, decision: Decision, headers: HeaderList) -> None:
        name = steering_header(headers) if decision.looks_inside else None
        if name is not None:
            verdict = Decision(False, decision.rule, f"the header {name!r} could undo the rule")
            raise self._gate.refuse(ask, verdict, "fetch")

    def _with_ours(self, hop: Hop, redactor: Redactor) -> HeaderList:
        secrets: dict[str, str] = {}
        in_clear = hop.target.scheme == "http"
        for name, reference in self._gate.rules.headers_for(hop.target.host, in_clear=in_clear).items():
            secret, secrets[name] = reference.reveal()
            redactor.add([secret])
        headers = replaced(asking_for_all(hop.headers) if secrets else hop.headers, secrets)
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
            raise FetchFailed(
                f"the response body of {announced} bytes is larger than {self.policy.max_body_bytes} bytes",
                reason="too_large",
                hint="raise max_body_bytes",
            )


def _first_hop(request: FetchRequest) -> Hop:
    if not isinstance(request.method, str):
        raise FetchFailed("the method must be text", reason="invalid")
    if request.body is not None and not isinstance(request.body, str | bytes | bytearray | memoryview):
        raise FetchFailed(f"the body must be bytes or text, not {type(request.body).__name__}", reason="invalid")
    headers = checked_headers(request.headers)
    try:
        return Hop(parse_url(request.url), request.method.upper(), headers, request.body_bytes)
    except UrlError as error:
        raise FetchFailed(f"the URL is refused: {error}", reason="invalid") from None


def _next_hop(hop: Hop, status: int, location: str) -> Hop:
    try:
        # Servers send UTF-8 here, and h11 hands on bytes: undo the Latin-1 reading where that works.
        text = location.encode("latin-1").decode("utf-8", "replace")
        target = redirect_target(hop.target, text)
    except UrlError as error:
        raise FetchFailed(f"the redirect is refused: {error}", reason="refused") from None
    if hop.target.scheme == "https" and target.scheme != "https":
        raise FetchFailed(f"the redirect from https to http on {target.host} is refused", reason="refused")
    following = replace(hop, target=target)
    if target.origin != hop.target.origin:
        following = replace(following, headers=across_origins(following.headers))
    becomes_get = (status == 303 and hop.method != "HEAD") or (status in (301, 302) and hop.method == "POST")
    if becomes_get:
        following = replace(following, method="GET", body=b"", headers=without_body(following.headers))
    return following
