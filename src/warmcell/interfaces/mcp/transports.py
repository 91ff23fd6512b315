"""Transports of the MCP server: stdio and streamable HTTP."""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import anyio.to_thread
import mcp_types as types
import uvicorn
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage

from warmcell.interfaces.mcp.clients import Clients
from warmcell.interfaces.serve.http_protocol import MAX_HEAD, DeadlineProtocol
from warmcell.interfaces.serve.requests import RESPONSE_END, BodyMemory, RequestsById, check_mcp_message, read_ahead
from warmcell.interfaces.serve.responses import ClientDisconnected, HttpError, error_response
from warmcell.interfaces.serve.settings import is_loopback

MAX_BODY = 16 * 1024 * 1024
MAX_SESSIONS = 256
#: Of which one address has three quarters.
MAX_CONNECTIONS = 1024


async def serve_stdio(server: Server[Clients]) -> None:
    """Serve until stdin closes or a signal arrives, then destroy the sandbox."""
    loop = asyncio.get_running_loop()
    is_stopping, has_ended = asyncio.Event(), asyncio.Event()
    serving = loop.create_task(_serve_until_closed(server, has_ended))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, is_stopping.set)
    await asyncio.wait([serving, loop.create_task(is_stopping.wait())], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        return serving.result()
    serving.cancel()
    await has_ended.wait()
    os._exit(0)  # a thread of the SDK is still blocked in readline


async def _serve_until_closed(server: Server[Clients], has_ended: asyncio.Event) -> None:
    """Serve until the client disconnects; a broken pipe is a normal disconnect."""
    try:
        await _over_stdio(server, has_ended)
    except* (BrokenPipeError, ConnectionResetError):
        has_ended.set()


async def _over_stdio(server: Server[Clients], has_ended: asyncio.Event) -> None:
    lines = BoundedLines(MAX_BODY)
    async with stdio_server(stdin=cast(Any, lines)) as (reading, writing):

        async def refuse(request: str | int | None) -> None:
            error = types.ErrorData(code=types.INVALID_REQUEST, message=f"a message has at most {MAX_BODY} bytes")
            await writing.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request, error=error)))

        lines.on_too_large = refuse
        try:
            await server.run(reading, writing, server.create_initialization_options())
        finally:
            has_ended.set()


def http_app(server: Server[Clients], host: str, token: str | None, idle_seconds: float) -> Any:
    """The ASGI application, at /mcp."""
    security = None if is_loopback(host) else TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server.streamable_http_app(
        host=host,
        max_request_body_size=MAX_BODY,
        session_idle_timeout=idle_seconds,
        max_sessions=MAX_SESSIONS,
        transport_security=security,
    )
    bounded = _BoundedMessages(app)
    return bounded if token is None else _TokenGuard(bounded, token)


async def serve_http(app: Any, host: str, port: int, on_listening: Callable[[str], object]) -> None:
    """Serve until SIGTERM or SIGINT. Raises `InvalidRequest` if it cannot listen there."""
    from warmcell.interfaces.serve.host_resources import connections_within_limit
    from warmcell.interfaces.serve.http_protocol import ConnectionShares
    from warmcell.interfaces.serve.listener import ConnectionLimit, listen, url_of  # loads much that stdio never needs
    from warmcell.interfaces.serve.settings import Settings

    limit = connections_within_limit(MAX_CONNECTIONS)
    limited = ConnectionLimit(app, limit)
    config = uvicorn.Config(
        limited,
        host=host,
        port=port,
        http=DeadlineProtocol,
        h11_max_incomplete_event_size=MAX_HEAD,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    serving = _HttpServer(config)
    limited.connections = serving.server_state.connections
    serving.server_state.connection_limit = ConnectionShares(limit, "")  # type: ignore[attr-defined]
    settings = Settings(host=host, port=port)
    with listen(settings) as listening:
        on_listening(f"{url_of(listening, settings)}/mcp")
        await serving.serve(sockets=[listening])


class _HttpServer(uvicorn.Server):
    """Shuts down gracefully on a signal; uvicorn would raise it again afterwards."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


class _TokenGuard:
    """Requires the bearer token, compared in constant time."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        presented = dict(scope.get("headers", [])).get(b"authorization", b"")
        if scope["type"] != "http" or hmac.compare_digest(presented, self._expected):
            await self._app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"error": "missing or invalid token"}'})


class _BoundedMessages:
    """Refuses what the SDK would keep for a whole session, take seconds to check or never answer, as `serve` does."""

    def __init__(self, app: Any) -> None:
        self._app, self._requests, self._bodies = app, RequestsById(), BodyMemory()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            await self._answer(scope, receive, send)
        finally:
            self._bodies.release(scope)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            body, _ = await read_ahead(receive, MAX_BODY, partial(self._bodies.take, scope))
            if len(body) > MAX_BODY:
                raise HttpError(413, f"a message has at most {MAX_BODY} bytes")
            body = await check_mcp_message(body)
        except ClientDisconnected:
            return
        except HttpError as error:
            await error_response(error)(scope, receive, send)
            return
        scope[RESPONSE_END] = asyncio.Event()
        try:
            await self._requests.call(self._app, scope, body, receive, send)
        finally:
            scope[RESPONSE_END].set()


#: The id is searched in the first bytes only: clients write it before long content.
_ID = re.compile(rb'"id"\s*:\s*(?:"([^"\\]{1,200})"|([0-9]{1,15}))\s*[,}]')
_HEAD = 4096

#: Called with the id of a request that was too large, or None if it was not found.
OnTooLarge = Callable[[str | int | None], Awaitable[None]]


class BoundedLines:
    """Replaces stdin, whose descriptor becomes /dev/null, so that programs that we start cannot read our messages."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        wire = os.dup(0)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(nothing, 0)
        os.close(nothing)
        # Never closed: a thread may be blocked in readline until the process exits.
        self._stream = os.fdopen(wire, "rb", closefd=False)
        self.on_too_large: OnTooLarge | None = None

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await anyio.to_thread.run_sync(self._next):
            if len(line) <= self._max_bytes:
                yield line.decode("utf-8", "replace")
            elif self.on_too_large is not None:
                await self.on_too_large(_id_in(line[:_HEAD]))

    def _next(self) -> bytes:
        """Read a line, or the start of one that is too long, whose rest is skipped."""
        line = part = self._stream.readline(self._max_bytes + 1)
        while len(line) > self._max_bytes and part and not part.endswith(b"\n"):
            part = self._stream.readline(1 << 16)
        return line


def _id_in(head: bytes) -> str | int | None:
    found = _ID.search(head)
    if found is None:
        return None
    return found[1].decode("utf-8", "replace") if found[1] is not None else int(found[2])
