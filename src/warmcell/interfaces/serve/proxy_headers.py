"""The client and scheme of requests that came through a proxy, and the path prefix of `--public-url`.

Only proxies named by `--trusted-proxy`, and our own processes, are believed.
"""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.serve.settings import Settings

#: Between our own processes. A process that relays puts its own first, and the first of each name counts.
CLIENT, SCHEME = b"x-warmcell-client", b"x-warmcell-scheme"
#: "1": another process reports the request, of which this is only a part.
PART = b"x-warmcell-part"
#: A key in the state of a scope: the connection is from another process of this server, and those headers are believed.
RELAYED = "warmcell.relayed"
#: A key in a request's scope: another process reports the request.
REPORTED_ELSEWHERE = "warmcell.reported"
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ProxyHeaders:
    """Correct `client`, `scheme` and `path` in the scope; the outermost middleware."""

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
                address = self._last_untrusted(headers.get(b"x-forwarded-for", b""))
                _set_client(scope, address, headers.get(b"x-forwarded-proto", b""))
            self._strip_prefix(scope)
        await self._app(scope, receive, send)

    def _is_trusted(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._trusted)

    def _last_untrusted(self, forwarded: bytes) -> bytes:
        """The right-most address that is not a proxy of ours: a client can put anything to the left of it."""
        addresses = [part.strip() for part in forwarded.split(b",") if part.strip()]
        return next((part for part in reversed(addresses) if not self._is_trusted(part.decode("latin-1"))), b"")

    def _strip_prefix(self, scope: Any) -> None:
        if self._prefix and (scope["path"] == self._prefix or scope["path"].startswith(f"{self._prefix}/")):
            scope["path"] = scope["path"][len(self._prefix) :] or "/"
            scope["raw_path"] = scope["raw_path"][len(self._prefix) :] or b"/"


def _set_client(scope: Any, address: bytes, scheme: bytes) -> None:
    if address:
        scope["client"] = (address.decode("latin-1")[:64], 0)
    if scheme in (b"http", b"https"):
        secure = scheme == b"https"
        scope["scheme"] = ("wss" if secure else "ws") if scope["type"] == "websocket" else scheme.decode()


def scheme_of(scope: Any) -> bytes:
    return b"https" if scope.get("scheme") in ("https", "wss") else b"http"


def parse_networks(text: str) -> tuple[Network, ...]:
    """`127.0.0.1,10.0.0.0/8`. Raises `InvalidRequest`."""
    try:
        return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InvalidRequest(str(error), field="trusted-proxy", hint="an address or network, 10.0.0.0/8") from None


def path_prefix(public_url: str | None) -> str:
    return "" if public_url is None else urlsplit(public_url).path.rstrip("/")


def public_origin(public_url: str | None) -> tuple[bytes, bytes] | None:
    """The Origin and the Host header of browsers that use the public URL."""
    if public_url is None:
        return None
    parts = urlsplit(public_url)
    return f"{parts.scheme}://{parts.netloc}".lower().encode(), parts.netloc.lower().encode()


def check_public_url(public_url: str | None) -> None:
    if public_url is None:
        return
    parts = urlsplit(public_url)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        hint = "for example https://sandboxes.example.org or https://example.org/sandboxes"
        raise InvalidRequest(f"{public_url[:80]!r} is not an http(s) URL", field="public-url", hint=hint)
