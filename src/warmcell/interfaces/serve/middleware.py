"""The layers around all routes: headers of proxies, request ids and events, protection against other web pages."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import secrets
import time
from typing import Any
from urllib.parse import urlsplit

from warmcell.core import events
from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.serve.requests import OWNER
from warmcell.interfaces.serve.responses import (
    CLIENT_GONE,
    HttpError,
    error_response,
    parse_whole_number,
    shutting_down,
)
from warmcell.interfaces.serve.settings import Settings, is_loopback
from warmcell.interfaces.serve.tokens import Tenant

#: Between our own processes. A process that relays puts its own first, and the first of each name counts.
CLIENT, SCHEME = b"x-warmcell-client", b"x-warmcell-scheme"
#: "1": this is only a part of a request that another process reports.
PART = b"x-warmcell-part"
#: A key in the state of a scope: the connection is from another process of this server, and those headers are believed.
RELAYED = "warmcell.relayed"
#: A key in a request's scope: another process reports the request.
REPORTED_ELSEWHERE = "warmcell.reported"
#: Another: whose fault an error is.
FAULT = "warmcell.fault"
#: Another: the id of the tenant's sandbox that the request names.
SANDBOX = "warmcell.sandbox"
HEADER = b"x-request-id"
#: A client's own id is kept if it is as harmless as ours.
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
#: Clients may send any word as a method. Others than these are "other" in events.
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "WEBSOCKET"))
_RESTRICTIVE = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
)
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ProxyHeaders:
    """Correct `client`, `scheme` and `path` in the scope; the outermost middleware.

    For requests that came through a proxy, and for the path prefix of `--public-url`. Only proxies named by
    `--trusted-proxy`, and our own processes, are believed.
    """

    def __init__(self, app: Any, settings: Settings) -> None:
        self._app = app
        self._trusted = parse_networks(settings.trusted_proxies)
        self._prefix = path_prefix(settings.public_url)
        self._is_needed = bool(self._trusted or self._prefix)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_relayed = RELAYED in scope.get("state", ())
        if (self._is_needed or is_relayed) and scope["type"] in ("http", "websocket"):
            headers = dict(reversed(scope["headers"]))  # the first of each name
            if is_relayed:
                _set_client(scope, headers.get(CLIENT, b""), headers.get(SCHEME, b""))
                if headers.get(PART) == b"1":
                    scope[REPORTED_ELSEWHERE] = True
            if self._is_trusted((scope.get("client") or ("", 0))[0]):
                lines = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
                address = self._last_untrusted(b",".join(lines))  # some proxies add a line of their own at the end
                _set_client(scope, address, headers.get(b"x-forwarded-proto", b""))
            if not is_relayed or scope["type"] == "websocket":  # the process that relays a request has removed it
                self._strip_prefix(scope)
        await self._app(scope, receive, send)

    def _is_trusted(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._trusted)

    def _last_untrusted(self, forwarded: bytes) -> bytes:
        """The right-most address that is not a trusted proxy: a client can put anything to the left of it."""
        addresses = [part.strip() for part in forwarded.split(b",") if part.strip()]
        return next((part for part in reversed(addresses) if not self._is_trusted(part.decode("latin-1"))), b"")

    def _strip_prefix(self, scope: Any) -> None:
        path = path_below(self._prefix, scope["path"])
        if path != scope["path"]:
            scope["path"], scope["raw_path"] = path, scope["raw_path"][len(self._prefix) :] or b"/"


def _set_client(scope: Any, address: bytes, scheme: bytes) -> None:
    if address:
        scope["client"] = (address.decode("latin-1")[:64], 0)
    if scheme in (b"http", b"https"):
        secure = scheme == b"https"
        scope["scheme"] = ("wss" if secure else "ws") if scope["type"] == "websocket" else scheme.decode()


def scheme_of(scope: Any) -> bytes:
    return b"https" if scope.get("scheme") in ("https", "wss") else b"http"


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse `127.0.0.1,10.0.0.0/8`. Raises `InvalidRequest`."""
    try:
        return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InvalidRequest(str(error), field="trusted-proxy", hint="an address or network, 10.0.0.0/8") from None


def path_prefix(public_url: str | None) -> str:
    return "" if public_url is None else urlsplit(public_url).path.rstrip("/")


def path_below(prefix: str, path: str) -> str:
    """The path without the prefix of `--public-url`; as it is if it is not below that."""
    return (path[len(prefix) :] or "/") if path == prefix or path.startswith(f"{prefix}/") else path


def public_origin(public_url: str | None) -> tuple[bytes, bytes] | None:
    """The Origin and the Host header of browsers that use the public URL."""
    if public_url is None:
        return None
    parts = urlsplit(public_url)
    return f"{parts.scheme}://{parts.netloc}".lower().encode(), parts.netloc.lower().encode()


def check_public_url(public_url: str | None) -> None:
    if public_url is None:
        return
    try:
        parts = urlsplit(public_url)
        has_other = parts.query or parts.fragment or "@" in parts.netloc
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and not has_other
    except ValueError:  # such as a bracket without the other
        is_valid = False
    if not is_valid:
        hint = "for example https://sandboxes.example.org or https://example.org/sandboxes"
        raise InvalidRequest(f"{public_url[:80]!r} is not an http(s) URL", field="public-url", hint=hint)


class OriginGuard:
    """Reject requests that another web page sends: the browser of a user can reach loopback under many names.

    Wraps the whole application, so that no response of any kind reaches such a page.
    """

    def __init__(self, app: Any, settings: Settings) -> None:
        self._app = app
        self._is_local_only = is_loopback(settings.host)
        self._public = public_origin(settings.public_url)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        problem = self._find_problem(scope) if scope["type"] in ("http", "websocket") else None
        app = self._app if problem is None else error_response(HttpError(403, problem))
        await app(scope, receive, send)

    def _find_problem(self, scope: Any) -> str | None:
        headers = dict(reversed(scope["headers"]))  # the first of each name
        host, origin = headers.get(b"host", b""), headers.get(b"origin")
        own_origin, own_host = self._public or (None, None)
        if self._is_local_only and host.lower() != own_host and not _is_loopback_name(host.decode("latin-1")):
            return "the Host header names another machine; behind a proxy, give --public-url"
        is_own = origin is None or origin.lower() == own_origin
        if not is_own and not hmac.compare_digest(origin or b"", scheme_of(scope) + b"://" + host):
            return "cross-origin requests are not allowed; behind a proxy, give --public-url"
        if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
            return "cross-site requests are not allowed"
        return None


def _is_loopback_name(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.lower() in ("localhost", "[::1]") or (name.startswith("127.") and is_address(name))


def is_address(name: str) -> bool:
    parts = [parse_whole_number(part or "0") for part in name.split(".")]
    return len(parts) == 4 and all(part is not None and part < 256 for part in parts)


class SecurityHeaders:
    """Add headers that forbid sniffing, framing and scripts, unless a response sets its own.

    A guest may have written what we send. Routes that need more, such as `page_files`, set their own policy.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in _RESTRICTIVE if pair[0] not in present)]
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class RequestLog:
    """Sets `X-Request-Id` on requests and responses, and emits `request` at the end of each.

    That event is the access log, the audit and the HTTP metrics.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        identity, status = _set_id(scope), 0

        async def send_with_id(message: Any) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                if not any(name.lower() == HEADER for name, _ in message["headers"]):
                    message["headers"] = [*message["headers"], (HEADER, identity)]
            elif message["type"] == "websocket.accept":
                status = 101
            await send(message)

        began = time.monotonic()
        try:
            with events.annotate(request=identity.decode()):
                await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:  # uvicorn cancels what outlasts the shutdown, and would answer 500
            if scope["type"] == "http" and not status:
                await error_response(shutting_down())(scope, receive, send_with_id)
            raise
        finally:
            if events.listeners and REPORTED_ELSEWHERE not in scope:
                fields = describe_request(scope, status or CLIENT_GONE, time.monotonic() - began)
                events.emit("request", identity.decode(), fields)


def annotate_events(request: Any, tenant: Tenant) -> None:
    """Add the tenant and its sandbox to all events of this request's task, which ends with the response.

    An id that is not one of the tenant's sandboxes is left out: usage figures are kept for each id.
    """
    identity = request.path_params.get("id") or request.headers.get("e2b-sandbox-id")
    entry = None if identity is None else request.app.state.service.sandboxes.find_any(identity)
    if entry is not None and entry.tenant_id == tenant.id:
        request.scope[SANDBOX] = entry.id
    events.annotate(tenant=tenant.id or None, sandbox=request.scope.get(SANDBOX)).__enter__()


def _set_id(scope: Any) -> bytes:
    """Keep the client's id, or add one, so that a worker behind a front uses the same."""
    given = next((value for name, value in scope["headers"] if name == HEADER), b"")
    if _ID.fullmatch(given):
        return bytes(given)
    identity = secrets.token_hex(8).encode()
    scope["headers"] = [*(pair for pair in scope["headers"] if pair[0] != HEADER), (HEADER, identity)]
    return identity


def id_of(scope: Any) -> str:
    """The id that `_set_id` left in the headers."""
    return next((value.decode() for name, value in scope["headers"] if name == HEADER), "")


def describe_request(scope: Any, status: int, duration: float) -> dict[str, Any]:
    """The route is its template and the method one of a few: the number of different values stays small."""
    route = getattr(scope.get("route"), "path", None)
    method = scope.get("method", "WEBSOCKET")
    return {
        "tenant": scope.get(OWNER) or None,
        "sandbox": scope.get(SANDBOX),
        "method": method if method in _METHODS else "other",
        "route": route or "other",
        "status": status,
        "duration": round(duration, 6),
        "fault": scope.get(FAULT) or ("host" if status >= 500 else "caller" if status >= 400 else None),
        "client": (scope.get("client") or ("", 0))[0],
    }
