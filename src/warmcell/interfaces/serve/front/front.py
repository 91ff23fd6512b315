"""The front of `warmcell serve --workers N`: it accepts connections, and N workers handle the requests.

Connections are passed to the workers, each to the one with the fewest. A worker answers runs itself and relays what
belongs to another one: everything that lasts (sandboxes, snapshots, sessions) is in one worker per tenant, chosen by
the token. The front has what they share: the queue, the counts of requests, and requests to all workers. It
answers clients itself only while no worker can.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.app import make_guards
from warmcell.interfaces.serve.authentication import find_token
from warmcell.interfaces.serve.e2b.templates import TEMPLATES
from warmcell.interfaces.serve.front.admission import Admission, read_limited_tenants
from warmcell.interfaces.serve.front.ask_peers import (
    HistoryStreams,
    ask,
    ask_until_found,
    choose_for_link,
    merge_figures,
    merge_lists,
)
from warmcell.interfaces.serve.front.client_connections import ClientConnections
from warmcell.interfaces.serve.front.client_sockets import ClientSocket, RelayedProtocol, SocketRelay
from warmcell.interfaces.serve.front.placement import (
    ANY_WORKER,
    OWN_SANDBOXES,
    SNAPSHOTS,
    TEMPLATE_NAMES,
    THE_FRONT,
    Placement,
    is_signed_link,
)
from warmcell.interfaces.serve.front.relay import relay
from warmcell.interfaces.serve.front.shared_memory import SharedCounts, make_counts_file
from warmcell.interfaces.serve.front.workers import KILL_SECONDS, Shared, Worker, Workers, check_socket_path
from warmcell.interfaces.serve.http_protocol import DeadlineProtocol
from warmcell.interfaces.serve.listener import Server, make_tls_context, reload_certificate, reload_on_change, serve_on
from warmcell.interfaces.serve.middleware import RELAYED, REPORTED_ELSEWHERE
from warmcell.interfaces.serve.quotas import SANDBOXES
from warmcell.interfaces.serve.requests import Receive, has_many_values, read_ahead, replay
from warmcell.interfaces.serve.responses import ClientDisconnected, HttpError, error_response, shutting_down
from warmcell.interfaces.serve.routing import AuthRoute, is_ending
from warmcell.interfaces.serve.sandbox_registry import MAX_CREATION_BYTES
from warmcell.interfaces.serve.server_limits import server_policy
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import hash_token, identify_file
from warmcell.languages.config import ProcessConfig
from warmcell.lifetime.fair_semaphore import FairSemaphore
from warmcell.policy.model import SandboxPolicy
from warmcell.workspace.untrusted_files import load_object

_log = logging.getLogger("warmcell.serve")
#: Pause after an error that the next `accept` would have too, such as too many open files.
_ACCEPT_PAUSE = 1.0


def check_start(settings: Settings) -> None:
    """Report what would stop every worker before clients connect: errors in the files that they read or in the place
    of their sockets, and a host where no cage can be made.
    """
    check_socket_path()
    read_limited_tenants(settings)
    policy = SandboxPolicy.from_file(settings.policy) if settings.policy else None
    with ProcessBackend.with_sandbox(ProcessConfig(python_path=settings.python), policy=server_policy(policy)):
        pass


async def serve_with_workers(settings: Settings, listening: socket.socket, started: Callable[[], object]) -> None:
    """Serve with workers. `started` is called when connections are accepted."""
    token_file = None if settings.tokens is None else identify_file(settings.tokens)  # before it is read
    front = Front(settings, listening)

    def start(server: Server) -> None:
        front.start_accepting(server)
        started()

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, front.reload)
        watching = None
        if settings.tokens:
            watching = asyncio.ensure_future(reload_on_change(settings.tokens, front.reload, token_file))
        try:
            yield
        finally:
            if watching is not None:
                watching.cancel()
            await front.aclose()

    app = Starlette(lifespan=lifespan, middleware=make_guards(settings))
    app.router.default = front
    await serve_on(
        front.workers.listening,
        app,
        settings,
        front,
        on_started=start,
        counts_connections=False,
        http=RelayedProtocol,
        date_header=False,
        ws=partial(SocketRelay, front.choose_for_socket),
    )


class Front:
    """Accepts connections for the workers. As an application it answers what only the front can answer."""

    def __init__(self, settings: Settings, listening: socket.socket) -> None:
        self.draining = asyncio.Event()
        self._settings, self._listening = settings, listening
        self._placement = Placement(settings)
        self._admission = Admission(settings)
        self._streams = HistoryStreams(self._admission, self.draining)
        self._connections = ClientConnections(
            settings.max_connections, self._placement.routes, self._serve_here, settings.trusted_proxies
        )
        queue = FairSemaphore(ProcessConfig().most_at_once, settings.max_waiting)
        counts_file = make_counts_file(settings.workers)
        self._counts = SharedCounts(counts_file)
        shared = Shared(queue, self._admission, self._connections, self._counts, counts_file)
        self.workers = Workers(settings, shared)
        self._spread = Spread(settings, self._placement, self.workers.all, self._counts)
        self._tls = None if settings.tls_cert is None else make_tls_context(settings)
        self._connections.is_encrypted = self._tls is not None
        self._accepting: asyncio.Future[None] | None = None
        self._tasks = {asyncio.ensure_future(self._end_workers_on_drain())}
        if self._tls is not None:
            self._tasks.add(asyncio.ensure_future(reload_certificate(self._tls, settings)))
        # The workers exit first, or are killed.
        self.shutdown_seconds = settings.shutdown_seconds + 2 * KILL_SECONDS

    def describe_work(self) -> str:
        return f"requests in progress may finish within {self._settings.drain_timeout:g} s"

    def reload(self) -> None:
        self._admission.reload()
        self.workers.reload()

    def start_accepting(self, server: Server) -> None:
        self._server = server
        self._accepting = asyncio.ensure_future(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        self._listening.setblocking(False)
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listening)
                self._connections.place(connection)
                await asyncio.sleep(0)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                _log.error("cannot accept a connection: %s", error)
                await asyncio.sleep(_ACCEPT_PAUSE)

    def _serve_here(self, connection: ClientSocket) -> None:
        task = asyncio.ensure_future(self._adopt(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _adopt(self, connection: ClientSocket) -> None:
        with suppress(OSError):  # the client left, or failed the handshake
            await self._server.adopt(connection, DeadlineProtocol, self._tls)

    async def _end_workers_on_drain(self) -> None:
        """Signal the workers at once: they end the endless streams."""
        await self.draining.wait()
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        self._listening.close()
        self._connections.is_closed = True
        self.workers.end()

    async def aclose(self) -> None:
        await self.workers.aclose()
        for task in tuple(self._tasks):
            task.cancel()
        self._connections.close()
        self._counts.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request, route = Request(scope, receive), self._placement.find_route(scope)
        if RELAYED not in scope["state"]:
            send = partial(_send_last, send)
        try:
            if self.draining.is_set():
                raise shutting_down()
            if self._connections.is_over_limit and RELAYED not in scope["state"]:
                raise HttpError(503, "too many connections")
            with self._admission.count(find_token(request) or "", ends_something=is_ending(request, route)):
                await self._answer(request, route, send)
        except (HttpError, ClientDisconnected, SandboxError) as error:
            render = error_response if route is None else route.render_error
            await render(error)(scope, receive, send)

    async def _answer(self, request: Request, route: AuthRoute | None, send: Any) -> None:
        scope, place = "" if route is None else route.description["scope"], self._placement.choose(request, route)
        if scope in ("metrics", "operate"):
            response = await self._ask_workers(request, scope)
            await response(request.scope, request.receive, send)
            return
        if place == THE_FRONT and not is_signed_link(request):
            await self._spread.answer(request, send)
            return
        is_link, workers = place == THE_FRONT, self.workers.all
        chosen = await choose_for_link(workers, request, send) if is_link else self._worker_at(place)
        if chosen is not None:
            request.scope[REPORTED_ELSEWHERE] = True
            await relay(chosen, request.scope, request.receive, send)

    async def _ask_workers(self, request: Request, scope: str) -> Response:
        if scope == "metrics":
            return await merge_figures(self.workers.all, request, self._streams)
        return await ask_until_found(self.workers.all, request)

    def _worker_at(self, place: int) -> Worker:
        if place != ANY_WORKER:
            return self.workers.all[place]
        return min(self.workers.all, key=lambda worker: (not worker.is_ready, worker.active_requests))

    async def choose_for_socket(self, request: HTTPConnection) -> Worker:
        if self.draining.is_set():
            raise shutting_down()
        return self._worker_at(self._placement.choose_for_socket(request))


async def _send_last(send: Any, message: dict[str, Any]) -> None:
    """Close a client's connection after the response: the next one goes to a worker."""
    if message["type"] == "http.response.start":
        headers = [pair for pair in message["headers"] if pair[0].lower() != b"connection"]
        message = {**message, "headers": [*headers, (b"connection", b"close")]}
    await send(message)


class Spread:
    """Without a token file there is one tenant, and its sandboxes are spread over the workers. Answers the requests
    that `Placement` leaves to it.

    A new sandbox goes to the worker with the fewest; its id then names the worker. Lists are merged. A snapshot is in
    the worker of its sandbox, and sandboxes that start with it are made there. Volumes are all in one worker, and so
    are the sandboxes that mount them.
    """

    def __init__(self, settings: Settings, placement: Placement, workers: list[Worker], counts: SharedCounts) -> None:
        self._settings, self._placement, self._workers, self._counts = settings, placement, workers, counts
        #: By worker: sandboxes that are being requested, which the worker may not have counted yet.
        self._requested: Counter[int] = Counter()

    async def answer(self, request: Request, send: Any) -> None:
        request.scope[REPORTED_ELSEWHERE] = True
        path = request.scope["path"]
        if path.startswith(TEMPLATE_NAMES):
            owner = await self._find_snapshot(request, path.removeprefix("/templates/").removeprefix("aliases/"))
            await relay(owner or self._home(request), request.scope, request.receive, send)
        elif request.method == "POST":
            await self._create(request, send)
        else:
            await (await merge_lists(self._workers, request))(request.scope, request.receive, send)

    def _home(self, request: Request) -> Worker:
        return self._workers[self._placement.home(request)]

    # ---- new sandboxes ----

    async def _create(self, request: Request, send: Any) -> None:
        worker, receive = self._least_used(), request.receive
        if request.scope["path"] != OWN_SANDBOXES:  # E2B's may name a snapshot or volumes
            worker, receive = await self._choose_by_body(request)
        self._requested[worker.number] += 1
        try:
            await relay(worker, request.scope, receive, send)
        finally:
            self._requested[worker.number] -= 1

    def _least_used(self) -> Worker:
        return min(self._workers, key=self._load)

    def _load(self, worker: Worker) -> tuple[bool, int, int]:
        number = worker.number
        return not worker.is_ready, self._counts.of_worker(number, SANDBOXES) + self._requested[number], number

    async def _choose_by_body(self, request: Request) -> tuple[Worker, Receive]:
        if not self._is_allowed(request):  # the worker refuses it, without reading its body
            return self._home(request), request.receive
        body, has_more = await read_ahead(request.receive, min(self._settings.max_body, MAX_CREATION_BYTES))
        receive = replay(body, request.receive, has_more=has_more)
        asked = None if has_more or has_many_values(body) else load_object(body)
        if asked is None:  # which every worker refuses
            return self._least_used(), receive
        return await self._choose(request, asked.get("templateID"), bool(asked.get("volumeMounts"))), receive

    def _is_allowed(self, request: Request) -> bool:
        token = self._settings.token
        return token is None or hmac.compare_digest(hash_token(find_token(request) or ""), hash_token(token))

    async def _choose(self, request: Request, template: Any, has_volumes: bool) -> Worker:
        owner, home = None, self._home(request)
        if isinstance(template, str) and template not in TEMPLATES:
            owner = await self._find_snapshot(request, template)
        if owner is not None and owner is not home and has_volumes:
            message = "the snapshot and the volumes are in different processes of this server"
            raise HttpError(409, f"{message}; mount the volumes in the sandbox that the snapshot is taken from")
        return owner or (home if has_volumes else self._least_used())

    async def _find_snapshot(self, request: Request, name: str) -> Worker | None:
        """The worker that has the snapshot with this name or id; None if no worker has it, or the token is wrong."""
        query = f"name={quote(name.removesuffix(':default'), safe='', errors='surrogatepass')}".encode()
        scope = {**request.scope, "method": "GET", "path": SNAPSHOTS, "raw_path": SNAPSHOTS.encode()}
        for worker in self._workers:
            found = await ask(worker, scope | {"query_string": query}, request.receive, is_part=True)
            if found.status_code == 200 and json.loads(bytes(found.body)):
                return worker
        return None
