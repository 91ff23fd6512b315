"""`warmcell serve --workers N`: one process that listens, and several that carry out what is asked.

A program that is run and forgotten goes to whichever worker has the least to do. All that stays of a tenant (sandboxes,
snapshots, sessions) is in one worker, found by the token: what it may have is counted there, and nothing need be shared
but the queue, which is here. A sandbox's own clients name no tenant; its id says which worker has it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

import h11
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Match

from warmcell.core.errors import BackendUnavailable, SandboxError
from warmcell.interfaces.serve.app import make_routes
from warmcell.interfaces.serve.doors import Door, FromElsewhere, Unframed, presented_token
from warmcell.interfaces.serve.e2b.connect import CONNECT, END_OF_STREAM, envelope
from warmcell.interfaces.serve.exchange import ClientGone, Refused, answer, plain_error, refusal
from warmcell.interfaces.serve.front.relay import Event, NotReached, Receive, WorkerLost, carried, reached
from warmcell.interfaces.serve.front.socket_relay import SocketRelay
from warmcell.interfaces.serve.front.workers import Worker, Workers
from warmcell.interfaces.serve.held_sandboxes import ASKS_ONLY, MAYBE_ELSEWHERE, marked_worker
from warmcell.interfaces.serve.measured import METRICS_HEADERS, Measured, summed
from warmcell.interfaces.serve.rates import AnswersUnderWay, Rates
from warmcell.interfaces.serve.server import serve_on
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import Tenant, find_tenant, read_tokens
from warmcell.interfaces.serve.v1.activity import UnderWay, joined
from warmcell.interfaces.serve.v1.event_streams import event_stream, wants_events
from warmcell.interfaces.serve.v1.watched import PATH as HISTORY
from warmcell.interfaces.serve.v1.watched import Watched, joined_history, live
from warmcell.languages.config import ProcessConfig
from warmcell.lifetime.tenant_queue import TenantQueue
from warmcell.policy.model import SandboxPolicy

#: How long a request waits for a worker that is being started.
STARTING_SECONDS = 20.0


def check_files(settings: Settings) -> None:
    """What every worker will read: a mistake in it is told before anything listens."""
    _limited(settings)
    if settings.policy:
        SandboxPolicy.from_file(settings.policy)


def _limited(settings: Settings) -> tuple[Tenant, ...]:
    """Whose requests are counted."""
    return () if settings.tokens is None else read_tokens(settings.tokens)


async def serve_with_workers(settings: Settings, listening: socket.socket) -> None:
    front = Front(settings)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, front.reload)
        try:
            yield
        finally:
            await front.aclose()

    app = Starlette(lifespan=lifespan, middleware=[Middleware(Unframed), Middleware(FromElsewhere, settings=settings)])
    app.router.default = front
    await serve_on(listening, app, settings, front, date_header=False, ws=partial(SocketRelay, front.for_socket))


class Front:
    """An application that has no answers of its own, but for what no worker could say."""

    def __init__(self, settings: Settings) -> None:
        self.draining = asyncio.Event()
        self._settings = settings
        self._doors = _doors()
        self._tenants = _limited(settings)
        self._rates, self._answers = Rates(), AnswersUnderWay()
        queue = TenantQueue(ProcessConfig().most_at_once, settings.max_waiting)
        self.workers = Workers(settings, queue)
        self._drain = asyncio.ensure_future(self._drained())

    def reload(self) -> None:
        """A file with a mistake in it changes nothing here, and the workers tell of it."""
        with suppress(SandboxError):
            self._tenants = _limited(self._settings)
        self.workers.reload()

    async def _drained(self) -> None:
        """Workers hear of it at once: there are streams that would stand for ever."""
        await self.draining.wait()
        self.workers.end()

    async def aclose(self) -> None:
        self._drain.cancel()
        await self.workers.aclose()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        door = self._door(scope)
        try:
            if self.draining.is_set():
                raise _ending()
            with self._counted(request, door is not None and door.ends_something):
                if door is not None and door.described["scope"] == "metrics":
                    await (await self._figures(request, receive))(scope, receive, send)
                else:
                    await self._answer(request, door, send)
        except (Refused, ClientGone, SandboxError) as error:
            refuse = refusal if door is None else door.refuse
            await refuse(error)(scope, receive, send)

    @contextmanager
    def _counted(self, request: HTTPConnection, ends_something: bool) -> Iterator[None]:
        """As each worker counts its own, but all of them: what a tenant may ask does not grow with their number."""
        tenant = find_tenant(self._tenants, presented_token(request) or "") if self._tenants else None
        if tenant is None:
            yield
            return
        self._rates.take(tenant)
        self._answers.enter(tenant, ends_something=ends_something)
        try:
            yield
        finally:
            self._answers.leave(tenant)

    async def _answer(self, request: Request, door: Door | None, send: Any) -> None:
        is_link = request.scope["path"] == "/files" and "signature" in request.query_params
        is_link = is_link and "e2b-sandbox-id" not in request.headers
        chosen = await self._of_link(request, send) if is_link else self._chosen(request, door)
        if chosen is not None:
            await self._relayed(chosen, request.scope, request.receive, send)

    async def _of_link(self, request: Request, send: Any) -> Worker | None:
        """A link names neither sandbox nor tenant: each worker is asked, without the body, whether it is for it."""
        headers = [
            pair for pair in request.scope["headers"] if pair[0] not in (b"content-length", b"transfer-encoding")
        ]
        scope = {**request.scope, "headers": [*headers, (ASKS_ONLY.encode(), b"1")]}
        for worker in self.workers.all:
            parts: list[dict[str, Any]] = []
            await self._relayed(worker, scope, _nothing(), partial(_kept, parts))
            if MAYBE_ELSEWHERE.encode() not in dict(parts[0]["headers"]):
                return worker
        for part in parts:
            await send(part)
        return None

    async def for_socket(self, socket: HTTPConnection) -> Worker:
        """The worker of a WebSocket, ready."""
        if self.draining.is_set():
            raise _ending()
        worker = self._chosen(socket, None)
        await self._ready(worker, STARTING_SECONDS)
        return worker

    def _chosen(self, request: HTTPConnection, door: Door | None) -> Worker:
        """Who has what is asked for."""
        workers, scope = self.workers.all, "" if door is None else door.described["scope"]
        if scope == "run" or request.scope["path"] in ("/healthz", "/readyz"):
            return min(workers, key=lambda worker: (not worker.is_ready.is_set(), worker.under_way))
        identity = request.headers.get("e2b-sandbox-id")
        if identity is not None:
            number = marked_worker(identity)
            return workers[number if number is not None and number < len(workers) else 0]
        return workers[self._home(request)]

    def _home(self, request: HTTPConnection) -> int:
        """Where all that stays of a tenant is; where there is but one tenant, whatever a client presents."""
        token = "" if self._settings.tokens is None else presented_token(request) or ""
        return int.from_bytes(hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()[:8]) % len(
            self.workers.all
        )

    async def _relayed(self, worker: Worker, scope: Any, receive: Receive, send: Any) -> None:
        head: h11.Response | None = None
        async with aclosing(await self._reached(worker, scope, receive)) as events:  # type: ignore[type-var]
            try:
                async for event in events:
                    if isinstance(event, h11.Response):
                        head = event
                    await send(_as_message(event))
            except WorkerLost as error:
                if head is None:
                    raise
                await _say_last(head, error, send)

    async def _reached(self, worker: Worker, scope: Any, receive: Receive) -> AsyncIterator[Event]:
        """The answer of a worker that has got the request: one that is just being started is waited for."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + STARTING_SECONDS
        while True:
            await self._ready(worker, latest - loop.time())
            with suppress(NotReached):  # it has just ended
                return carried(worker, await reached(worker), scope, receive)
            await asyncio.sleep(0.05)

    async def _ready(self, worker: Worker, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await worker.is_ready.wait()
        except TimeoutError:
            message = "the worker of this request does not start"
            raise BackendUnavailable(message, hint="come again later") from None

    async def _figures(self, request: Request, receive: Receive) -> Response:
        """Of all workers together; a stream of them is made here."""
        scope, headers = request.scope, [pair for pair in request.scope["headers"] if pair[0] != b"accept"]

        async def told(since: float) -> dict[str, Any]:
            query = f"since={since}".encode() if since else scope["query_string"]
            found = await self._of_all({**scope, "headers": headers, "query_string": query}, _again(b"", receive))
            if found.status_code != 200:
                raise Refused(found.status_code, "a worker does not say")
            history: dict[str, Any] = json.loads(bytes(found.body))
            return history

        if scope["path"] != HISTORY or not wants_events(request):
            return await self._of_all({**scope, "headers": headers}, receive)
        first = await self._of_all({**scope, "headers": headers}, _again(b"", receive))
        return first if first.status_code != 200 else event_stream(live(told, self.draining))

    async def _of_all(self, scope: Any, receive: Receive) -> Response:
        """What all workers have together, if each of them shows it to this client."""
        bodies: list[bytes] = []
        for worker in self.workers.all:
            parts: list[dict[str, Any]] = []
            await self._relayed(worker, scope, _again(b"", receive), partial(_kept, parts))
            bodies.append(b"".join(part.get("body", b"") for part in parts))
            head = {name.decode(): text.decode() for name, text in parts[0]["headers"]}
            if parts[0]["status"] != 200:
                return Response(bodies[-1], parts[0]["status"], head)
        if head["content-type"] == "application/json":
            return answer(joined_history(bodies) if scope["path"] == HISTORY else joined(bodies))
        return Response(summed(body.decode() for body in bodies), headers=METRICS_HEADERS)

    def _door(self, scope: Any) -> Door | None:
        return next((door for door in self._doors if door.matches(scope)[0] is Match.FULL), None)


def _ending() -> Refused:
    return Refused(503, "the server is about to end", headers={"Retry-After": "5"})


def _doors() -> list[Door]:
    """As the workers have them: how each says that it failed, and whether it is for runs."""
    measured, under_way, watched = Measured(), UnderWay(), Watched()
    measured.close()
    under_way.close()
    watched.close()
    return [route for route in make_routes(measured, under_way, watched) if isinstance(route, Door)]


def _as_message(event: Event) -> dict[str, Any]:
    if isinstance(event, h11.Response):
        headers = [(name, value) for name, value in event.headers if name not in (b"connection", b"transfer-encoding")]
        return {"type": "http.response.start", "status": event.status_code, "headers": headers}
    data = bytes(event.data) if isinstance(event, h11.Data) else b""
    return {"type": "http.response.body", "body": data, "more_body": isinstance(event, h11.Data)}


async def _say_last(head: h11.Response, error: WorkerLost, send: Any) -> None:
    """Where a stream is cut, in its own words; an answer of another kind is cut, and its client finds it too short."""
    kind = dict(head.headers).get(b"content-type", b"").partition(b";")[0].decode("latin-1")
    if kind == "text/event-stream":
        words = f"event: error\ndata: {json.dumps({'error': plain_error(error)})}\n\n".encode()
    elif kind == CONNECT:
        words = envelope({"error": {"code": "unavailable", "message": error.message}}, END_OF_STREAM)
    else:
        return
    await send({"type": "http.response.body", "body": words})


async def _kept(parts: list[dict[str, Any]], message: dict[str, Any]) -> None:
    parts.append(message)


def _nothing() -> Receive:
    """A request without a body, whose client waits."""
    waiting = asyncio.get_running_loop().create_future()
    return _again(b"", lambda: waiting)


def _again(body: bytes, receive: Receive) -> Receive:
    """A request whose body was read, once more; then whatever else comes of its client."""
    first = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Any:
        return first.pop() if first else await receive()

    return received
