"""Protection against other web pages: an origin check on requests, restrictive headers on responses."""

from __future__ import annotations

import hmac
from typing import Any

from warmcell.interfaces.serve.proxy_headers import public_origin, scheme_of
from warmcell.interfaces.serve.responses import HttpError, error_response
from warmcell.interfaces.serve.settings import Settings, is_loopback

_RESTRICTIVE = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
)


class OriginGuard:
    """Reject requests that another web page sends: the browser of a user can reach loopback under many names.

    Wraps the whole application, so that no response of any kind reaches such a page.
    """

    def __init__(self, app: Any, settings: Settings) -> None:
        self._app = app
        self._is_local_only = is_loopback(settings.host)
        self._public = public_origin(settings.public_url)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] in ("http", "websocket"):
            problem = self._find_problem(scope)
            if problem is not None:
                await error_response(HttpError(403, problem))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _find_problem(self, scope: Any) -> str | None:
        headers = _first_of_each(scope["headers"])
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


def _first_of_each(headers: Any) -> dict[bytes, bytes]:
    """Map each name to its first value, as Starlette's `Headers` does."""
    return dict(reversed(headers))


def _is_loopback_name(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.lower() in ("localhost", "[::1]") or (name.startswith("127.") and is_address(name))


def is_address(name: str) -> bool:
    parts = name.split(".")
    return len(parts) == 4 and all(part.isascii() and part.isdigit() and int(part) < 256 for part in parts if part)


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
