"""Listening: one socket, one event loop, bounded heads and connections; ends in order."""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Sized
from contextlib import contextmanager
from typing import Any, Protocol

import uvicorn

from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.serve.app import make_app
from warmcell.interfaces.serve.collecting import keep_what_is_loaded
from warmcell.interfaces.serve.exchange import Refused, refusal
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings, check_reach
from warmcell.interfaces.serve.slow_clients import MAX_HEAD, ImpatientProtocol
from warmcell.interfaces.serve.web_sockets import MAX_MESSAGE

_log = logging.getLogger("warmcell.serve")
#: After what did not end in time was ended: for saying so.
LAST_WORDS_SECONDS = 5.0
_MOST_DESCRIPTORS = 1 << 16
_CLOSE = {"Connection": "close"}


class Bounded:
    """Has those come again who come when there are too many: uvicorn's own limit does not say when.

    Nor is a body read whose length is said in two ways: a proxy before us may have believed the other, and what we took
    for the next request was part of this one.
    """

    def __init__(self, app: Any, most: int) -> None:
        self._app, self._most = app, most
        self.connections: Sized = ()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        problem = None if scope["type"] == "lifespan" else self._problem(scope)
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await refusal(problem)(scope, receive, send)

    def _problem(self, scope: Any) -> Refused | None:
        if len(self.connections) > self._most:
            return Refused(503, "there are too many connections", headers=_CLOSE)
        names = {name for name, _ in scope["headers"]}
        if b"transfer-encoding" in names and b"content-length" in names:
            return Refused(400, "the length of the body is said in two ways", headers=_CLOSE)
        return None


class Draining(Protocol):
    """Takes nothing new once this is set."""

    draining: asyncio.Event


class Server(uvicorn.Server):
    """Ends in order at SIGTERM and SIGINT, and not by the signal: uvicorn would raise it again when all is done."""

    def __init__(self, config: uvicorn.Config, service: Draining) -> None:
        super().__init__(config)
        self._service = service

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain, number)
        yield
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    def _drain(self, number: signal.Signals) -> None:
        self._service.draining.set()
        self.handle_exit(number, None)


def allow_many_descriptors() -> None:
    """A sandbox takes a dozen, and the usual limit is for programs that wait with `select`, which nothing here does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def serve(settings: Settings, on_listening: Callable[[str], object]) -> None:
    """Blocks until SIGTERM or SIGINT; what is under way then is finished first, within `drain_timeout`."""
    check_reach(settings)
    allow_many_descriptors()
    listening = listen(settings)
    try:
        serving = _with_workers(settings, listening) if settings.workers > 1 else served(Service(settings), listening)
        on_listening(_url(listening))
        asyncio.run(serving)
    finally:
        listening.close()


def _with_workers(settings: Settings, listening: socket.socket) -> Coroutine[Any, Any, None]:
    from warmcell.interfaces.serve.front.front import check_files, serve_with_workers

    check_files(settings)
    return serve_with_workers(settings, listening)


def _is_news(record: logging.LogRecord) -> bool:
    """An answer that was broken off on purpose is none: see `e2b.interpreter.CellStream`."""
    return "without completing response" not in record.getMessage()


async def served(service: Service, listening: socket.socket) -> None:
    patience = asyncio.ensure_future(_lose_patience(service))
    app = make_app(service)
    keep_what_is_loaded()
    try:
        await serve_on(listening, app, service.settings, service)
    finally:
        patience.cancel()


async def _lose_patience(service: Service) -> None:
    """What has not ended in time is ended, and says so as its last: uvicorn would only cut it."""
    await service.draining.wait()
    await asyncio.sleep(service.settings.drain_timeout)
    await service.aclose()


async def serve_on(listening: socket.socket, app: Any, settings: Settings, drained: Draining, **more: Any) -> None:
    bounded = Bounded(app, settings.max_connections)
    server = Server(configured(bounded, settings, **more), drained)
    bounded.connections = server.server_state.connections
    await server.serve(sockets=[listening])


def configured(app: Any, settings: Settings, ws: Any = None, **more: Any) -> uvicorn.Config:
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    return uvicorn.Config(
        app,
        http=ImpatientProtocol,
        ws=ws or _socket_protocol(),
        ws_max_size=MAX_MESSAGE,
        ws_per_message_deflate=False,
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=math.ceil(settings.drain_timeout + LAST_WORDS_SECONDS),
        h11_max_incomplete_event_size=MAX_HEAD,
        **more,
    )


def _socket_protocol() -> Any:
    try:
        from warmcell.interfaces.serve.socket_protocol import PatientSocketProtocol
    except ImportError:
        _log.warning("no WebSockets: the package 'wsproto' is not installed (pip install 'warmcell[serve]')")
        return "none"
    return PatientSocketProtocol


def listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listening = socket.create_server((settings.host, settings.port), family=family, backlog=1024)
        # For every connection: the second piece of a stream would wait 40 ms for the client to confirm the first.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        where = f"{settings.host}:{settings.port}"
        raise InvalidRequest(f"cannot listen on {where}: {reason.lower()}", hint="choose another --port") from None


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
