"""Run an ASGI application on a listening socket: bounded heads and connections, graceful shutdown."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sized
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Protocol

import uvicorn

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import replace
from warmcell.interfaces.serve.http_protocol import MAX_HEAD, ConnectionShares, DeadlineProtocol, StallGuard
from warmcell.interfaces.serve.responses import HttpError, error_response
from warmcell.interfaces.serve.settings import LAST_RESPONSE_SECONDS, Settings
from warmcell.interfaces.serve.tokens import FileIdentity, identify_file
from warmcell.interfaces.serve.websockets import MAX_MESSAGE
from warmcell.lifetime.descriptors import host_failure

_log = logging.getLogger("warmcell.serve")
#: The exit status of a process that hangs in its shutdown.
_EXIT_STATUS = 70
_CLOSE = {"Connection": "close"}
#: The longest path: a file's, which the kernel limits to 4,096 bytes, and the route before it.
MAX_PATH = 4096 + 512
#: Connections that the kernel queues, and how many are accepted at once: few, so that we notice which clients have left
#: before we accept the next ones.
_BACKLOG, _MOST_AT_ONCE = 1024, 32
#: How many bytes of WebSocket frames are parsed at once. Parsing a frame takes 30 us.
_FRAMES_PIECE = 4096
#: A connection without traffic for a minute is probed; after four probes without an answer it is closed.
_PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
#: The first descriptor that systemd passes.
_FIRST = 3
_HINT = "give the .socket unit one ListenStream= with a port"


class ConnectionLimit:
    """Reject with Retry-After when over the connection limit; uvicorn's own limit does not send that header.

    Also rejects a body with two lengths (Transfer-Encoding and Content-Length): a proxy may have used the other one,
    and would take part of this body for the next request. Rejects long paths too: they are compared with all routes.
    """

    def __init__(self, app: Any, limit: int) -> None:
        self._app, self._limit = app, limit
        self.connections: Sized = ()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        problem = None if scope["type"] == "lifespan" else self._find_problem(scope)
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await error_response(problem)(scope, receive, send)

    def _find_problem(self, scope: Any) -> HttpError | None:
        if len(self.connections) > self._limit:
            return HttpError(503, "too many connections", headers=_CLOSE)
        if len(scope["path"]) > MAX_PATH:
            return HttpError(414, f"the path has more than {MAX_PATH} characters", headers=_CLOSE)
        names = {name for name, _ in scope["headers"]}
        if b"transfer-encoding" in names and b"content-length" in names:
            return HttpError(400, "both Transfer-Encoding and Content-Length are set", headers=_CLOSE)
        return None


class Drainable(Protocol):
    """Accepts no new work once `draining` is set, and exits within `shutdown_seconds`."""

    draining: asyncio.Event
    shutdown_seconds: float

    def describe_work(self) -> str:
        """What is in progress, for the log."""
        ...


class AcceptFailures:
    """An exception handler that logs one line if connections cannot be accepted; asyncio tries again after a second.

    asyncio's own handler prints a traceback for each of up to `_MOST_AT_ONCE` attempts per second.
    """

    _PAUSE = 10.0

    def __init__(self) -> None:
        self._logged = -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not context["message"].startswith("socket.accept()") or not isinstance(error, OSError):
            loop.default_exception_handler(context)
        elif loop.time() - self._logged >= self._PAUSE:
            self._logged = loop.time()
            _log.error("%s; trying again", host_failure(error, "accept connections"))


OnStarted = Callable[["Server"], object]


class Server(uvicorn.Server):
    """Shut down in order at SIGTERM and SIGINT, without uvicorn's raising the signal again at the end."""

    def __init__(self, config: uvicorn.Config, service: Drainable, on_started: OnStarted | None = None) -> None:
        super().__init__(config)
        self._service, self._on_started = service, on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(AcceptFailures())
        await super().startup(sockets=sockets)
        for each in sockets or ():
            each.listen(_BACKLOG)  # asyncio has one number for both
        if self._on_started is not None and not self.should_exit:
            self._on_started(self)

    async def adopt(self, connection: socket.socket, make: Any, tls: ssl.SSLContext | None) -> None:
        """Serve a connection that was accepted elsewhere. Raises `OSError` if its TLS handshake fails."""
        protocol = partial(make, self.config, self.server_state, self.lifespan.state)
        await asyncio.get_running_loop().connect_accepted_socket(protocol, connection, ssl=tls)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain, number)
        yield
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    def _drain(self, number: signal.Signals) -> None:
        if not self._service.draining.is_set():
            _log.warning("%s: shutting down; %s", number.name, self._service.describe_work())
            exit_after(self._service.shutdown_seconds)
        self._service.draining.set()
        self.handle_exit(number, None)


def exit_after(seconds: float) -> None:
    """Exit the process after so many seconds, from a thread of its own. Called when the shutdown starts."""

    def give_up() -> None:
        _log.error("shutdown did not finish within %g s; exiting", seconds)
        logging.shutdown()
        os._exit(_EXIT_STATUS)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()


async def serve_on(
    listening: socket.socket,
    app: Any,
    settings: Settings,
    service: Drainable,
    *,
    on_started: OnStarted | None = None,
    counts_connections: bool = True,
    **options: Any,
) -> None:
    """Serve until shutdown. `on_started` is called when the application has started and listens."""
    if listening.family == socket.AF_UNIX:  # between our own processes
        settings = replace(settings, tls_cert=None, tls_key=None)
    limited = ConnectionLimit(app, settings.max_connections)
    config = make_config(limited, settings, **options)
    server = Server(config, service, on_started)
    if counts_connections:
        limited.connections = server.server_state.connections
        shares = ConnectionShares(settings.max_connections, settings.trusted_proxies)
        server.server_state.connection_limit = shares  # type: ignore[attr-defined]
    config.load()
    with ExitStack() as stack:
        if config.ssl:
            stack.callback(asyncio.ensure_future(reload_certificate(config.ssl, settings)).cancel)
        await server.serve(sockets=[listening])


async def reload_certificate(context: ssl.SSLContext, settings: Settings) -> None:
    """Watch the certificate: new connections use a replaced one; one that cannot be read is ignored."""
    path = settings.tls_cert
    assert path is not None

    def load() -> None:
        make_tls_context(settings)
        context.load_cert_chain(path, settings.tls_key)

    def reload() -> None:
        try:
            load()
        except InvalidRequest as error:
            _log.error("keeping the previous certificate: %s", error)
        else:
            _log.warning("reloaded the certificate")

    known = identify_file(path)
    with suppress(InvalidRequest, OSError):  # it may have been replaced after `context` was made
        load()
    await reload_on_change(path, reload, known)


def make_tls_context(settings: Settings) -> ssl.SSLContext:
    """Load the certificate and the key. Raises `InvalidRequest` if they cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert or "", settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        reason = (error.strerror or str(error)).lower()
        raise InvalidRequest(f"cannot use {settings.tls_cert!r} for TLS: {reason}", field="tls-cert") from None
    return context


def make_config(
    app: Any, settings: Settings, http: Any = DeadlineProtocol, ws: Any = None, **options: Any
) -> uvicorn.Config:
    if settings.tls_cert is not None:
        options |= {"ssl_certfile": settings.tls_cert, "ssl_keyfile": settings.tls_key}
    logging.getLogger("uvicorn.error").addFilter(_is_unexpected)
    return uvicorn.Config(
        app,
        http=http,
        ws=ws or find_websocket_protocol(),
        ws_max_size=MAX_MESSAGE,
        ws_per_message_deflate=False,
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        backlog=_MOST_AT_ONCE,
        timeout_graceful_shutdown=math.ceil(settings.drain_timeout + LAST_RESPONSE_SECONDS),
        h11_max_incomplete_event_size=MAX_HEAD,
        **options,
    )


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Drop uvicorn's message about responses that we cut on purpose; see `e2b.interpreter.CellStream`."""
    return "without completing response" not in record.getMessage()


def find_websocket_protocol() -> Any:
    try:
        from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
    except ImportError:
        _log.warning("WebSockets are disabled: 'wsproto' is not installed (pip install 'warmcell[serve]')")
        return "none"

    class DrainingWebSocketProtocol(StallGuard, WSProtocol):
        """Do not cut open WebSockets at shutdown: runs may finish, and handlers of endless streams end themselves.

        What was read is parsed in pieces, one in each iteration of the event loop: parsing 256 KiB of empty frames
        takes seconds.
        """

        _unread = b""

        def data_received(self, data: bytes) -> None:
            is_parsing, self._unread = bool(self._unread), self._unread + data
            if not is_parsing:
                self._parse_piece()

        def _parse_piece(self) -> None:
            if self.disconnected or self.transport.is_closing():
                self._unread = b""
                return
            super().data_received(self._unread[:_FRAMES_PIECE])
            self._unread = self._unread[_FRAMES_PIECE:]
            if self._unread:
                self.transport.pause_reading()
                self.loop.call_soon(self._parse_piece)
            elif not self.read_paused:
                self.transport.resume_reading()

        async def receive(self) -> Any:
            message = await super().receive()  # which resumes reading
            if self._unread:
                self.transport.pause_reading()
            return message

        def shutdown(self) -> None:
            if not self.handshake_complete:
                super().shutdown()

    return DrainingWebSocketProtocol


def listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return prepare_socket(socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        where = f"{settings.host}:{settings.port}"
        raise InvalidRequest(f"cannot listen on {where}: {reason.lower()}", hint="choose another --port") from None


def prepare_socket(listening: socket.socket) -> socket.socket:
    """Set the options that accepted connections inherit."""
    # Without it the second piece of a stream waits 40 ms for an ACK of the first.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A WebSocket to a silent port sends nothing by which we could notice that its client has lost its network.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        if hasattr(socket, name):  # not everywhere; then the system's own times hold
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return listening


def url_of(listening: socket.socket, settings: Settings) -> str:
    host, port = listening.getsockname()[:2]
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def reload_on_change(path: str, reload: Callable[[], object], known: FileIdentity | None = None) -> None:
    """Call `reload` whenever the file was replaced or modified, until cancelled.

    `known` is its identity before it was first read, without which a change until now is not noticed.
    """
    known = known or identify_file(path)
    while True:
        await asyncio.sleep(1.0)
        if (found := identify_file(path)) != known:
            known = found
            try:
                reload()
            except Exception:  # else no later change would be noticed, such as a token that is revoked
                _log.exception("cannot reload %s, keeping the previous state", path)


def take_passed_socket() -> socket.socket | None:
    """A listening socket that a service manager passed, as systemd does for a `.socket` unit; else None.

    Removes `LISTEN_PID` and `LISTEN_FDS` from the environment. The socket outlives the server: clients that connect
    while a new version starts wait instead of being refused.
    """
    passed_to, count, _ = (os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    if passed_to != str(os.getpid()):
        return None
    if count != "1":
        raise InvalidRequest(f"the service manager passed {count or 0} sockets, and the server uses one", hint=_HINT)
    try:
        passed = socket.socket(fileno=_FIRST)
        is_listening = passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InvalidRequest(f"descriptor {_FIRST} is not a socket: {reason}", hint=_HINT) from None
    os.set_inheritable(_FIRST, False)
    if not is_listening or passed.family not in (socket.AF_INET, socket.AF_INET6):
        passed.close()
        raise InvalidRequest("the socket of the service manager does not listen on a TCP port", hint=_HINT)
    return passed
