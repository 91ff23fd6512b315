"""The front of `warmcell serve --ray`: accepts connections, and relays each request to the server of a node.

Runs wait here in one queue and go to the node with the lowest load. A sandbox is on one node, which its id names. The
front has no guests of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import logging
import signal
import socket
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Match

from warmcell.backends.ray.backend import RayBackend
from warmcell.backends.ray.placement import Node
from warmcell.core.errors import NodeLost, SandboxError
from warmcell.core.light import on_error
from warmcell.core.records import replace
from warmcell.interfaces.serve.app import make_guards
from warmcell.interfaces.serve.authentication import find_token, token_required
from warmcell.interfaces.serve.cluster.node_server import (
    ELSEWHERE,
    FRONT_HEADERS,
    GPU_IS_COUNTED,
    GPUS_ELSEWHERE,
    Definition,
    Rules,
)
from warmcell.interfaces.serve.cluster.nodes import ClusterNodes, NodePeer
from warmcell.interfaces.serve.cluster.placement import Kind, Place, classify, merge_identifiers, needs_of
from warmcell.interfaces.serve.e2b.envd import missing_sandbox
from warmcell.interfaces.serve.front.admission import Admission
from warmcell.interfaces.serve.front.ask_peers import (
    HistoryStreams,
    ask_until_found,
    choose_for_link,
    merge_figures,
    merge_lists,
)
from warmcell.interfaces.serve.front.client_sockets import SocketRelay
from warmcell.interfaces.serve.front.placement import Placement
from warmcell.interfaces.serve.front.relay import relay
from warmcell.interfaces.serve.listener import reload_on_change, serve_on
from warmcell.interfaces.serve.middleware import REPORTED_ELSEWHERE
from warmcell.interfaces.serve.requests import OWNER, BodyMemory, Receive, read_body, replay
from warmcell.interfaces.serve.responses import (
    ClientDisconnected,
    HttpError,
    error_response,
    json_response,
    shutting_down,
)
from warmcell.interfaces.serve.routing import AuthRoute, is_ending
from warmcell.interfaces.serve.sandbox_registry import SandboxLost, SandboxNotFound
from warmcell.interfaces.serve.server_limits import server_policy, share_of_slots
from warmcell.interfaces.serve.service import local_tenant, read_tenants
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import Tenant, find_tenant, identify_file
from warmcell.interfaces.serve.v1.runs import BACKGROUND_RUNS
from warmcell.languages.config import ProcessConfig
from warmcell.lifetime.fair_semaphore import FairSemaphore
from warmcell.lifetime.threads import cancel_and_wait
from warmcell.observe.metrics import METRICS_HEADERS
from warmcell.policy.model import SandboxPolicy

_log = logging.getLogger("warmcell.serve")


def join_cluster(settings: Settings) -> RayBackend:
    """Report what would stop every node before clients connect: no cluster, or no node that can enforce the policy."""
    rules = read_rules(settings)
    # The backend of the actor only shows what the node can enforce: its server has one of its own, with warm cells.
    config = ProcessConfig(python_path=settings.python, pool_size=0)
    backend = RayBackend(settings.ray, config=config, policy=server_policy(rules.policy))
    with on_error(backend.close):
        backend.nodes()
    return backend


def read_rules(settings: Settings) -> Rules:
    policy = SandboxPolicy.from_file(settings.policy) if settings.policy else None
    return Rules(read_tenants(settings), policy)


async def serve_on_cluster(
    settings: Settings, backend: RayBackend, listening: socket.socket, started: Callable[[], object]
) -> None:
    """`started` is called when requests are handled."""
    token_file = None if settings.tokens is None else identify_file(settings.tokens)  # before it is read
    front = ClusterFront(settings, backend)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, front.reload)
        tasks = [asyncio.ensure_future(front.nodes.watch()), asyncio.ensure_future(front.drain_nodes())]
        if settings.tokens:
            tasks.append(asyncio.ensure_future(reload_on_change(settings.tokens, front.reload, token_file)))
        try:
            yield
        finally:
            await cancel_and_wait(*tasks)

    app = Starlette(lifespan=lifespan, middleware=make_guards(settings))
    app.router.default = front
    app.state.bodies = BodyMemory()
    try:
        await front.nodes.wait_for_first()
        ws = partial(SocketRelay, front.choose_for_socket)
        await serve_on(listening, app, settings, front, on_started=lambda _: started(), ws=ws)
    finally:
        await front.nodes.close()


class ClusterFront:
    def __init__(self, settings: Settings, backend: RayBackend) -> None:
        self.draining = asyncio.Event()
        self.shutdown_seconds = settings.shutdown_seconds
        self._settings, self._rules = settings, read_rules(settings)
        self._routes = Placement(settings)
        self._admission = Admission(settings)
        self._streams = HistoryStreams(self._admission, self.draining)
        self._local_tenant = local_tenant(settings)
        self._config = ProcessConfig(python_path=settings.python)
        self._queue = FairSemaphore(1, settings.max_waiting)
        self._slots = 1
        self._running = 0
        self._reloading: set[asyncio.Task[None]] = set()
        #: By tenant: held while its sandboxes are counted, so that the next count has the one that this is for.
        self._counting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._counts = itertools.count(1)
        #: By tenant: runs with a GPU, except background runs.
        self._gpu_runs: Counter[str] = Counter()
        self.nodes = ClusterNodes(backend, self._define)
        self.nodes.on_change = self._resize

    def _define(self, suffix: str) -> Definition:
        """Describe the server of a node."""
        return Definition(replace(self._settings, ray=None), self._rules, self._config, suffix)

    def _resize(self) -> None:
        self._slots = max(1, sum(peer.facts.slots for peer in self.nodes.ready))
        self._queue.resize(self._slots)

    def describe_work(self) -> str:
        return f"{self._running} runs may finish within {self._settings.drain_timeout:g} s, all sandboxes end"

    async def drain_nodes(self) -> None:
        """Signal the nodes at once: they end the endless streams."""
        await self.draining.wait()
        await self.nodes.drain()

    def reload(self) -> None:
        """Read the token and policy files again. If one of them has an error, keep the present state."""
        try:
            self._rules = read_rules(self._settings)
        except SandboxError as error:
            _log.error("reload failed, keeping the previous state: %s", error)
            return
        self._admission.reload()
        task = asyncio.ensure_future(self.nodes.use(self._rules))
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)
        _log.warning("reloaded the token and policy files")

    def _find_tenant(self, token: str | None) -> Tenant | None:
        return self._local_tenant if self._settings.is_open else find_tenant(self._rules.tenants, token or "")

    # ---- requests ----

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request, route = Request(scope, receive), self._routes.find_route(scope)
        place = Place(Kind.HOME)
        try:
            if self.draining.is_set():
                raise shutting_down()
            place = self._classify(request, route)
            with self._admission.count(find_token(request) or "", ends_something=is_ending(request, route)):
                await self._answer(request, place, send)
        except (HttpError, ClientDisconnected, SandboxError) as error:
            await self._render(error, route, place)(scope, receive, send)
        finally:
            scope["app"].state.bodies.release(scope)

    def _classify(self, request: Request, route: AuthRoute | None) -> Place:
        scope, pattern = "", ""
        parameters: dict[str, Any] = {}
        if route is not None:
            scope, pattern = route.description["scope"], route.path
            match, child = route.matches(request.scope)
            parameters = child["path_params"] if match is Match.FULL else {}
        asked = merge_identifiers(request.headers, request.query_params)
        return classify(request.method, request.scope["path"], scope, pattern, parameters, asked)

    def _render(self, error: Exception, route: AuthRoute | None, place: Place) -> Response:
        # Routes without a scope that name a sandbox are E2B's, whose SDKs recognise a missing one by this response.
        is_of_e2b = place.kind is Kind.SANDBOX and route is not None and route.description["scope"] is None
        if is_of_e2b and isinstance(error, SandboxLost | SandboxNotFound):
            return missing_sandbox(place.identity, error.message if isinstance(error, SandboxLost) else "")
        return (error_response if route is None else route.render_error)(error)

    async def _answer(self, request: Request, place: Place, send: Any) -> None:
        request.scope["headers"] = [pair for pair in request.scope["headers"] if pair[0] not in FRONT_HEADERS]
        if place.kind is Kind.REFUSED:
            raise HttpError(501, place.reason)
        if place.kind in (Kind.RUN, Kind.CREATE):
            await self._answer_by_load(request, place, send)
        elif place.kind in (Kind.FIGURES, Kind.OPERATE, Kind.LIST):
            response = await self._ask_nodes(request, place.kind)
            if request.scope["path"] in ("/v1/activity", "/metrics") and response.status_code == 200:
                response = add_nodes(response, await self.nodes.describe(), self._queue.waiting)
            await response(request.scope, request.receive, send)
        else:
            peer = await self._choose(request, place, send)
            if peer is None:
                return
            receive, may_have_gpu = await self._look_for_gpu(request, place, peer)
            options = {"is_creating": place.is_creating, "may_have_gpu": may_have_gpu}
            try:
                await self._relay(peer, request, receive, send, **options)
            except NodeLost as error:
                raise SandboxLost(error.node, error.reason) from None

    async def _ask_nodes(self, request: Request, kind: Kind) -> Response:
        if kind is Kind.FIGURES:
            return await merge_figures(self.nodes.ready, request, self._streams)
        return await (merge_lists if kind is Kind.LIST else ask_until_found)(self.nodes.ready, request)

    async def _choose(self, request: Request, place: Place, send: Any) -> NodePeer | None:
        if place.kind is Kind.SANDBOX:
            return self.nodes.find(place.identity)
        if place.kind is Kind.SIGNED_LINK:
            return await choose_for_link(self.nodes.ready, request, send)
        return self.nodes.choose_home("" if self._settings.tokens is None else find_token(request) or "")

    async def choose_for_socket(self, request: HTTPConnection) -> NodePeer:
        if self.draining.is_set():
            raise shutting_down()
        parts = self._routes.path_of_socket(request).split("/")
        if parts[1:3] == ["v1", "sandboxes"] and len(parts) > 3:
            return self.nodes.find(parts[3])
        return self.nodes.choose(needs_of(b""))

    async def _answer_by_load(self, request: Request, place: Place, send: Any) -> None:
        """Answer a run or a new sandbox. If its node is lost before it answers, repeat it elsewhere."""
        tenant = self._find_tenant(find_token(request))
        if tenant is None:
            raise token_required()
        request.scope[OWNER] = tenant.id
        body = await read_body(request, self._settings.max_body)
        if place.kind is Kind.CREATE:
            await self.nodes.count_sandboxes()
            await self._repeat(request, place, body, send)
            return
        share = share_of_slots(tenant, self._slots, has_others=self._settings.tokens is not None)
        slot = self._queue.slot(tenant.id, share, self._settings.queue_timeout)
        async with self._hold_gpu(request, tenant, body), slot:
            self._running += 1
            try:
                await self._repeat(request, place, body, send)
            finally:
                self._running -= 1

    def _is_gpu_limited(self, tenant: Tenant) -> bool:
        return self._settings.tokens is not None and "gpu" in tenant.scopes

    async def _look_for_gpu(self, request: Request, place: Place, peer: NodePeer) -> tuple[Receive, bool]:
        """How to receive the request, and whether it starts a background run or a fork that may have a GPU."""
        tenant = self._find_tenant(find_token(request))
        if tenant is None or not self._is_gpu_limited(tenant):
            return request.receive, False
        if request.method == "POST" and request.scope["path"] == BACKGROUND_RUNS:
            request.scope[OWNER] = tenant.id
            body = await read_body(request, self._settings.max_body)
            return replay(body, request.receive), needs_of(body).has_gpus
        if place.kind is not Kind.SANDBOX or not place.is_creating:
            return request.receive, False
        count = (await self.nodes.count_gpus()).get(peer)
        return request.receive, count is None or count[tenant.id] > 0  # the GPU of the sandbox that is forked counts

    @asynccontextmanager
    async def _hold_gpu(self, request: Request, tenant: Tenant, body: bytes) -> AsyncIterator[None]:
        """Count a run that names GPUs until it ends. Raises `HttpError` 429 if the tenant has reached its number."""
        if not self._is_gpu_limited(tenant) or not needs_of(body).has_gpus:
            yield
            return
        with ExitStack() as holding:
            async with self._counting[tenant.id]:
                counts = await self.nodes.count_gpus()
                if sum(count[tenant.id] for count in counts.values()) + self._gpu_runs[tenant.id] >= tenant.gpu_runs:
                    raise HttpError(429, f"this token already has {tenant.gpu_runs} runs or sandboxes with a GPU")
                holding.enter_context(_add_one(self._gpu_runs, tenant))
            request.scope["headers"] = [*request.scope["headers"], (GPU_IS_COUNTED.encode(), b"1")]
            yield

    async def _repeat(self, request: Request, place: Place, body: bytes, send: Any) -> None:
        needs = needs_of(body, is_sandbox=place.kind is Kind.CREATE)
        options = {"is_creating": place.is_creating, "may_have_gpu": place.is_creating and needs.has_gpus}
        for attempts_left in range(self.nodes.backend.retries, -1, -1):
            peer = self.nodes.choose(needs)
            peer.running += 1
            try:
                receive = replay(body, request.receive)
                await self._relay(peer, request, receive, send, **options)
                return
            except NodeLost:
                if not attempts_left:
                    raise
            finally:
                peer.running -= 1

    async def _relay(
        self,
        peer: NodePeer,
        request: Request,
        receive: Receive,
        send: Any,
        *,
        is_creating: bool = False,
        may_have_gpu: bool = False,
    ) -> None:
        """`is_creating`: a sandbox. `may_have_gpu`: what is made may have a GPU, and outlast the request."""
        request.scope[REPORTED_ELSEWHERE] = True
        tenant = self._find_tenant(find_token(request)) if is_creating or may_have_gpu else None
        if tenant is None:
            await relay(peer, request.scope, receive, send)
            return
        headers = list(request.scope["headers"])
        with ExitStack() as creating:
            async with self._counting[tenant.id]:
                if is_creating:
                    elsewhere = _count_elsewhere(await self.nodes.count_sandboxes(), peer, tenant)
                    headers.append((ELSEWHERE.encode(), f"{next(self._counts)} {elsewhere}".encode()))
                    creating.enter_context(_add_one(peer.creating, tenant))
                    peer.sandboxes += 1
                if may_have_gpu and self._is_gpu_limited(tenant):
                    elsewhere = _count_elsewhere(await self.nodes.count_gpus(), peer, tenant)
                    elsewhere += self._gpu_runs[tenant.id]
                    headers.append((GPUS_ELSEWHERE.encode(), f"{next(self._counts)} {elsewhere}".encode()))
                    creating.enter_context(_add_one(peer.creating_with_gpu, tenant))

            async def send_after_end(message: Any) -> None:
                creating.close()  # before the client can ask for the next one
                await send(message)

            await relay(peer, {**request.scope, "headers": headers}, receive, send_after_end)


@contextmanager
def _add_one(counts: Counter[str], tenant: Tenant) -> Iterator[None]:
    counts[tenant.id] += 1
    try:
        yield
    finally:
        counts[tenant.id] -= 1


def _count_elsewhere(counts: Mapping[NodePeer, Counter[str]], peer: NodePeer, tenant: Tenant) -> int:
    return sum(count[tenant.id] for other, count in counts.items() if other is not peer)


def add_nodes(response: Response, nodes: Sequence[Node], waiting: int) -> Response:
    """Add the nodes to the merged `/metrics` or `/v1/activity`."""
    if response.media_type != "application/json":
        return Response(bytes(response.body).decode() + _metrics(nodes, waiting), headers=METRICS_HEADERS)
    activity: dict[str, Any] = json.loads(bytes(response.body))
    return json_response({**activity, "nodes": [dataclasses.asdict(node) for node in nodes]})


def _metrics(nodes: Sequence[Node], waiting: int) -> str:
    states = Counter("unavailable" if node.reason else "ready" for node in nodes)
    lines = ["# HELP warmcell_nodes Nodes of the cluster.", "# TYPE warmcell_nodes gauge"]
    lines += [f'warmcell_nodes{{state="{state}"}} {states[state]}' for state in ("ready", "unavailable")]
    lines += ["# HELP warmcell_cluster_waiting Runs that wait for a node.", "# TYPE warmcell_cluster_waiting gauge"]
    return "\n".join([*lines, f"warmcell_cluster_waiting {waiting}", ""])
