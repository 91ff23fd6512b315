"""How clients reach the server: over this process's stdin and stdout, or over streamable HTTP."""

from __future__ import annotations

import asyncio
import hmac
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import mcp_types as types
import uvicorn
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage

from warmcell.interfaces.mcp.bounded_lines import BoundedLines
from warmcell.interfaces.mcp.clients import Clients
from warmcell.interfaces.serve.settings import is_loopback
from warmcell.interfaces.serve.slow_clients import MAX_HEAD, ImpatientProtocol

MAX_BODY = 16 * 1024 * 1024
MAX_SESSIONS = 256


async def serve_stdio(server: Server[Clients]) -> None:
    """Until stdin ends or the process is asked to: then every sandbox is destroyed first."""
    loop = asyncio.get_running_loop()
    is_told, is_over = asyncio.Event(), asyncio.Event()
    serving = loop.create_task(_while_heard(server, is_over))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, is_told.set)
    await asyncio.wait([serving, loop.create_task(is_told.wait())], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        return serving.result()
    serving.cancel()
    await is_over.wait()
    os._exit(0)  # a thread of the SDK still waits for a line, and nothing but one could end it


async def _while_heard(server: Server[Clients], is_over: asyncio.Event) -> None:
    """A client that died while it was to be answered has gone like any other."""
    try:
        await _over_stdio(server, is_over)
    except* (BrokenPipeError, ConnectionResetError):
        is_over.set()


async def _over_stdio(server: Server[Clients], is_over: asyncio.Event) -> None:
    lines = BoundedLines(MAX_BODY)
    async with stdio_server(stdin=cast(Any, lines)) as (reading, writing):

        async def refuse(request: str | int | None) -> None:
            said = types.ErrorData(code=types.INVALID_REQUEST, message=f"a message has at most {MAX_BODY} bytes")
            await writing.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request, error=said)))

        lines.on_too_large = refuse
        try:
            await server.run(reading, writing, server.create_initialization_options())
        finally:
            is_over.set()


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
    return app if token is None else _Guarded(app, token)


async def serve_http(app: Any, host: str, port: int, on_listening: Callable[[str], object]) -> None:
    """Until SIGTERM or SIGINT."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=ImpatientProtocol,
        h11_max_incomplete_event_size=MAX_HEAD,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    serving = _HttpServer(config)
    with config.bind_socket() as listening:
        listening.listen(config.backlog)  # uvicorn would do so later than the address is told
        address, bound = listening.getsockname()[:2]
        on_listening(f"http://[{address}]:{bound}/mcp" if ":" in address else f"http://{address}:{bound}/mcp")
        await serving.serve(sockets=[listening])


class _HttpServer(uvicorn.Server):
    """Ends in order at a signal, and not by it: uvicorn would raise it again when all is done."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


class _Guarded:
    """Lets in who presents the token; compared whole, so that time tells nothing about it."""

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
        await send({"type": "http.response.body", "body": b'{"error": "a token is needed"}'})
