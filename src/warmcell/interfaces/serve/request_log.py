"""Request ids, and one `request` event for each response: the access log, the audit and the HTTP metrics."""

from __future__ import annotations

import re
import secrets
import time
from typing import Any

from warmcell.core import events
from warmcell.interfaces.serve.proxy_headers import REPORTED_ELSEWHERE
from warmcell.interfaces.serve.requests import OWNER
from warmcell.interfaces.serve.responses import CLIENT_GONE
from warmcell.interfaces.serve.tokens import Tenant

HEADER = b"x-request-id"
#: A client's own id is kept if it is as harmless as ours.
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
#: A key in a request's scope: whose fault an error is.
FAULT = "warmcell.fault"


class RequestLog:
    """The outermost middleware. Sets `X-Request-Id` on requests and responses, and emits `request` at the end."""

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
        finally:
            if events.listeners and REPORTED_ELSEWHERE not in scope:
                fields = describe_request(scope, status or CLIENT_GONE, time.monotonic() - began)
                events.emit("request", identity.decode(), fields)


def annotate_events(request: Any, tenant: Tenant) -> None:
    """Add the tenant and the sandbox to all events of this request's task, which ends with the response."""
    sandbox = request.path_params.get("id") or request.headers.get("e2b-sandbox-id", "")[:64] or None
    events.annotate(tenant=tenant.id or None, sandbox=sandbox).__enter__()


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
    """The route is its template, not the path: the number of different values stays small."""
    route = getattr(scope.get("route"), "path", None)
    sandbox = scope.get("path_params", {}).get("id")
    if sandbox is None:
        values = (value for name, value in scope["headers"] if name == b"e2b-sandbox-id")
        sandbox = next((value.decode("latin-1")[:64] for value in values), None)
    return {
        "tenant": scope.get(OWNER) or None,
        "sandbox": sandbox,
        "method": scope.get("method", "WEBSOCKET"),
        "route": route or "other",
        "status": status,
        "duration": round(duration, 6),
        "fault": scope.get(FAULT) or ("host" if status >= 500 else "caller" if status >= 400 else None),
        "client": (scope.get("client") or ("", 0))[0],
    }
