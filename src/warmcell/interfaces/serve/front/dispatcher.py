"""In a worker: serve the connections that the front passes on, and relay the requests that belong to another worker."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from typing import Any

from starlette.requests import HTTPConnection, Request

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.authentication import find_token
from warmcell.interfaces.serve.e2b.connect import CONNECT
from warmcell.interfaces.serve.front.admission import FrontAdmission
from warmcell.interfaces.serve.front.client_sockets import CONNECTION, ClientProtocol, WorkerSocket
from warmcell.interfaces.serve.front.connection_states import NO_ROUTE, ConnectionStates, Phase
from warmcell.interfaces.serve.front.control import Control
from warmcell.interfaces.serve.front.placement import ANY_WORKER, THE_FRONT, Placement
from warmcell.interfaces.serve.front.relay import EVENT_STREAM, Peer, relay
from warmcell.interfaces.serve.listener import Server, make_tls_context, reload_certificate
from warmcell.interfaces.serve.middleware import REPORTED_ELSEWHERE
from warmcell.interfaces.serve.responses import ClientDisconnected, HttpError, error_response
from warmcell.interfaces.serve.routing import AuthRoute
from warmcell.interfaces.serve.service import Service

#: Connections taken from the front before anything else runs.
_MOST_AT_ONCE = 16


class Neighbours:
    """The other processes of this server, by their sockets in one directory."""

    def __init__(self, directory: str, count: int) -> None:
        self.front = Peer("the front", f"{directory}/front")
        self.workers = [Peer(f"worker {number}", f"{directory}/{number}") for number in range(count)]


class Dispatcher:
    """The innermost middleware of a worker."""

    def __init__(self, service: Service, number: int, neighbours: Neighbours, admission: FrontAdmission) -> None:
        self._service, self._number = service, number
        self._neighbours, self._admission = neighbours, admission
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
            raise HttpError(503, "the server is shutting down", headers={"Retry-After": "5"})
        place = self._placement.choose(request, route)
        if place == THE_FRONT:  # which counts the request
            await self._relay(self._neighbours.front, request, send)
            return
        async with self._count(request, route):
            if place in (ANY_WORKER, self._number):
                await self._app(request.scope, request.receive, send)
            else:
                await self._relay(self._neighbours.workers[place], request, send)

    async def _relay(self, peer: Peer, request: Request, send: Any) -> None:
        request.scope[REPORTED_ELSEWHERE] = True
        await relay(peer, request.scope, request.receive, send)

    def _count(self, request: Request, route: AuthRoute | None) -> AbstractAsyncContextManager[None]:
        tenant = None if self._service.settings.tokens is None else self._service.tenant(find_token(request))
        if tenant is None:
            return nullcontext()
        return self._admission.request(tenant, ends_something=route is not None and route.ends_something)

    async def choose_for_socket(self, request: HTTPConnection) -> Peer | None:
        """The worker of a WebSocket; None: this one."""
        place = self._placement.choose_for_socket(request)
        return None if place in (ANY_WORKER, self._number) else self._neighbours.workers[place]


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
