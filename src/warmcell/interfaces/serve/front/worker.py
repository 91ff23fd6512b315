"""A worker behind a front: the whole server. The front passes connections of clients to it, and it relays the requests
that belong to another worker.

    python -m warmcell.interfaces.serve.front.worker NUMBER LISTENING CONTROL CHANNEL STATES COUNTS

The last five are descriptors: a socket for requests that other processes relay, a connection for settings, queue slots
and admission, one over which client connections come, the memory with their states, and that with the numbers of
sandboxes. It exits when the front does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext, suppress
from functools import partial
from typing import Any

from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.authentication import find_token
from warmcell.interfaces.serve.e2b.connect import CONNECT
from warmcell.interfaces.serve.front.admission import FrontAdmission
from warmcell.interfaces.serve.front.client_sockets import (
    CONNECTION,
    ClientProtocol,
    RelayedProtocol,
    WorkerSocket,
    make_socket_protocol,
)
from warmcell.interfaces.serve.front.control import Control, FrontQueue, open_control
from warmcell.interfaces.serve.front.placement import ANY_WORKER, THE_FRONT, Placement
from warmcell.interfaces.serve.front.relay import EVENT_STREAM, Peer, relay
from warmcell.interfaces.serve.front.shared_memory import NO_ROUTE, ConnectionStates, Phase, SharedCounts, SharedQuota
from warmcell.interfaces.serve.listener import Server, find_websocket_protocol, make_tls_context, reload_certificate
from warmcell.interfaces.serve.middleware import REPORTED_ELSEWHERE
from warmcell.interfaces.serve.quotas import TenantQuota
from warmcell.interfaces.serve.responses import ClientDisconnected, HttpError, error_response, shutting_down
from warmcell.interfaces.serve.routing import AuthRoute, is_ending
from warmcell.interfaces.serve.server import configure_logging, serve_app
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.lifetime.host_program import share_machine
from warmcell.observe.audit import AuditLog

#: How many connections are taken from the front before other work runs.
_MOST_AT_ONCE = 16


class Dispatcher:
    """The innermost middleware of a worker."""

    def __init__(self, service: Service, number: int, directory: str, admission: FrontAdmission) -> None:
        """`directory`: with the sockets of the other processes of this server."""
        self._service, self._number, self._admission = service, number, admission
        self._front = Peer("the front", f"{directory}/front")
        self._workers = [Peer(f"worker {peer}", f"{directory}/{peer}") for peer in range(service.settings.workers)]
        self._placement = Placement(service.settings)
        self._route_numbers = {id(route): number for number, route in enumerate(self._placement.routes)}

    def around(self, app: Any) -> Dispatcher:
        self._app = app
        return self

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        connection = scope.get("state", {}).get(CONNECTION)
        if scope["type"] != "http" or connection is None:  # another process has decided that it belongs here
            await self._app(scope, receive, send)
            return
        request, route = Request(scope, receive), self._placement.find_route(scope)
        connection.mark(Phase.REQUEST, NO_ROUTE if route is None else self._route_numbers[id(route)])
        send = partial(_send_marked, connection, scope["http_version"], send)
        try:
            await self._answer(request, route, send)
        except (HttpError, ClientDisconnected, SandboxError) as error:
            render = error_response if route is None else route.render_error
            await render(error)(scope, receive, send)

    async def _answer(self, request: Request, route: AuthRoute | None, send: Any) -> None:
        if self._service.is_draining:
            raise shutting_down()
        place = self._placement.choose(request, route)
        if place == ANY_WORKER and self._may_use_gpu(request):
            place = self._placement.home(request)  # with the tenant's sandboxes: one process counts its GPUs
        if place == THE_FRONT:  # which counts the request
            await self._relay(self._front, request, send)
            return
        async with self._count(request, route):
            if place in (ANY_WORKER, self._number):
                await self._app(request.scope, request.receive, send)
            else:
                await self._relay(self._workers[place], request, send)

    def _may_use_gpu(self, request: Request) -> bool:
        """Whether a run of this tenant may have a GPU, of which its token has a number at a time."""
        service = self._service
        if service.settings.tokens is None or service.policy is None or service.policy.gpus is None:
            return False
        tenant = service.tenant(find_token(request))
        return tenant is not None and "gpu" in tenant.scopes

    async def _relay(self, peer: Peer, request: Request, send: Any) -> None:
        request.scope[REPORTED_ELSEWHERE] = True
        await relay(peer, request.scope, request.receive, send)

    def _count(self, request: Request, route: AuthRoute | None) -> AbstractAsyncContextManager[None]:
        tenant = None if self._service.settings.tokens is None else self._service.tenant(find_token(request))
        if tenant is None:
            return nullcontext()
        return self._admission.request(tenant, ends_something=is_ending(request, route))

    async def choose_for_socket(self, request: HTTPConnection) -> Peer | None:
        """The worker of a WebSocket; None: this one."""
        place = self._placement.choose_for_socket(request)
        return None if place in (ANY_WORKER, self._number) else self._workers[place]


async def _send_marked(connection: WorkerSocket, http_version: str, send: Any, message: Any) -> None:
    if message["type"] == "http.response.start":
        headers = dict(message["headers"])
        kind = headers.get(b"content-type", b"").partition(b";")[0].decode("latin-1")
        is_chunked = http_version == "1.1" and b"content-length" not in headers
        phases = {EVENT_STREAM: Phase.EVENTS, CONNECT: Phase.CONNECT} if is_chunked else {}
        connection.mark(phases.get(kind, Phase.OTHER))
    await send(message)


class Receiver:
    """Takes over connections of clients from the front. `start` is called when the server has started."""

    def __init__(self, service: Service, channel: socket.socket, states: ConnectionStates, control: Control) -> None:
        settings = service.settings
        self._channel, self._states, self._control = channel, states, control
        self._tls = None if settings.tls_cert is None else make_tls_context(settings)
        self._tasks = set[asyncio.Future[None]]()
        if self._tls is not None:
            self._run(reload_certificate(self._tls, settings))

    def start(self, server: Server) -> None:
        self._channel.setblocking(False)
        asyncio.get_running_loop().add_reader(self._channel, self._receive, server)
        self._control.send({"ready": True})

    def _receive(self, server: Server) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                data, descriptors, _, _ = socket.recv_fds(self._channel, 4, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            if not data:
                asyncio.get_running_loop().remove_reader(self._channel)
                return
            slot = int.from_bytes(data, "little")
            if descriptors:
                self._run(self._serve(server, slot, descriptors[0]))
            else:  # this process has no free descriptor for it
                self._report_closed(slot)

    async def _serve(self, server: Server, slot: int, descriptor: int) -> None:
        connection = WorkerSocket(descriptor, slot, self._states, partial(self._report_closed, slot))
        if server.should_exit:
            connection.close()
            return
        with suppress(OSError):  # the client left, or failed the handshake
            await server.adopt(connection, partial(ClientProtocol, connection), self._tls)

    def _report_closed(self, slot: int) -> None:
        self._control.send({"closed": slot})

    def _run(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._channel)
        for task in self._tasks:
            task.cancel()


def main(number: int, *descriptors: int) -> int:
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    *sockets, states, counts = descriptors
    share_machine()
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.socket(fileno=descriptor)) for descriptor in sockets]
        asyncio.run(_serve(number, ConnectionStates(states), SharedCounts(counts), *opened))
    return 0


async def _serve(
    number: int,
    states: ConnectionStates,
    counts: SharedCounts,
    listening: socket.socket,
    control: socket.socket,
    channel: socket.socket,
) -> None:
    front = await open_control(control)
    settings = Settings(**await front.first)
    configure_logging(settings.log_level, settings.log_format, f"worker {number}: ")
    audit = None if settings.audit is None else AuditLog(settings.audit)
    queue, admission = FrontQueue(front), FrontAdmission(front)
    make_quota = TenantQuota if settings.tokens is not None else partial(SharedQuota, counts, number)
    service = Service(settings, worker=number, queue=queue, make_quota=make_quota)
    dispatcher = Dispatcher(service, number, os.path.dirname(listening.getsockname()), admission)
    receiver = Receiver(service, channel, states, front)
    local = find_websocket_protocol()
    options = {
        "http": RelayedProtocol,
        "ws": local if local == "none" else partial(make_socket_protocol, dispatcher.choose_for_socket, local),
        "counts_connections": False,  # the front does
        "on_started": receiver.start,
    }
    front.handle = lambda message: (admission if message.keys() & {"entered", "refused"} else queue).handle(message)
    watching = asyncio.ensure_future(_exit_with_front(front, queue, admission))
    try:
        await serve_app(service, listening, [Middleware(dispatcher.around)], **options)
    finally:
        watching.cancel()
        receiver.close()
        front.close()
        if audit is not None:
            audit.close()


async def _exit_with_front(front: Control, queue: FrontQueue, admission: FrontAdmission) -> None:
    await front.closed.wait()
    queue.close()
    admission.close()
    os.kill(os.getpid(), signal.SIGTERM)  # no client can reach this process any more


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:7])))
