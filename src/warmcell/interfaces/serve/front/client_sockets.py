"""Connections of clients as an event loop sees them: it reports their end, and notes their phase for the front.

WebSockets are relayed to their worker: after the head has selected it, bytes are copied both ways.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast
from urllib.parse import unquote

import h11
from starlette.requests import HTTPConnection
from starlette.responses import Response

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.front.relay import Peer, connect_to_peer
from warmcell.interfaces.serve.front.shared_memory import NO_ROUTE, ConnectionStates, Phase
from warmcell.interfaces.serve.http_protocol import DeadlineProtocol, StallGuard
from warmcell.interfaces.serve.middleware import CLIENT, PART, RELAYED, SCHEME
from warmcell.interfaces.serve.responses import HttpError, error_response

#: A key in the state of a scope: the `ClientSocket` that a worker received from the front.
CONNECTION = "warmcell.connection"
#: The process to relay to; None: this one.
Choose = Callable[[HTTPConnection], Awaitable[Peer | None]]


class ClientSocket(socket.socket):
    """Calls `on_close` once when it is closed, whichever protocol it has by then."""

    def __init__(self, descriptor: int, on_close: Callable[[], object]) -> None:
        super().__init__(fileno=descriptor)
        self.setblocking(False)
        self._on_close: Callable[[], object] | None = on_close

    def close(self) -> None:
        super().close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


class WorkerSocket(ClientSocket):
    """In a worker. `mark` keeps the front informed in case this process is killed."""

    def __init__(self, descriptor: int, slot: int, states: ConnectionStates, on_close: Callable[[], object]) -> None:
        super().__init__(descriptor, on_close)
        self._slot, self._states = slot, states

    def mark(self, phase: Phase, route: int = NO_ROUTE) -> None:
        if self.fileno() >= 0:  # after that the slot belongs to another connection
            self._states.set(self._slot, phase, route)


class ClientProtocol(DeadlineProtocol):
    """A client's connection in a worker."""

    def __init__(self, connection: WorkerSocket, config: Any, server_state: Any, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: connection})
        self._connection = connection

    def data_received(self, data: bytes) -> None:
        if self.is_idle:
            self._connection.mark(Phase.REQUEST)
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._connection.mark(Phase.IDLE)
        super().on_response_complete()


class RelayedProtocol(DeadlineProtocol):
    """A connection from another process of this server, whose requests name their client."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, {**app_state, RELAYED: True}, _loop)


def make_socket_protocol(choose: Choose, local: Any, config: Any, server_state: Any, app_state: Any) -> Any:
    """The protocol of a WebSocket in a worker. `local` is uvicorn's; what was relayed to this worker belongs here."""
    if RELAYED in app_state:
        return local(config, server_state, app_state)
    app_state[CONNECTION].mark(Phase.OTHER)
    return SocketRelay(choose, config, server_state, app_state, local)


class Side(asyncio.Protocol):
    """One of two connections: copies to the other with backpressure; both close together."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class SocketRelay(StallGuard, Side):
    """The client's side, in place of uvicorn's WebSocket protocol, which is given the whole head first."""

    def __init__(self, choose: Choose, config: Any, server_state: Any, app_state: Any, local: Any = None) -> None:
        super().__init__()
        self._choose = choose
        self._make_local = None if local is None else partial(local, config, server_state, app_state)
        self._connections, self._tasks = server_state.connections, server_state.tasks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        assert self.transport is not None
        self.other = Side()
        self.other.other = self
        self.transport.pause_reading()
        task = asyncio.ensure_future(self._begin(data))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin(self, head: bytes) -> None:
        assert self.transport is not None and self.other is not None
        try:
            peer = await self._choose(parse_head(head))
            if peer is None:
                self._serve_here(head)
                return
            upstream = await connect_to_peer(peer)
            await asyncio.get_running_loop().create_unix_connection(lambda: cast("Side", self.other), sock=upstream)
        except (SandboxError, HttpError) as error:
            self.transport.write(response_bytes(error_response(error)))
            self.transport.close()
            return
        if self.transport.is_closing():  # the client left before there was another side
            self.other.connection_lost(None)
            cast("asyncio.Transport", self.other.transport).close()
            return
        super().data_received(self._with_our_headers(head))
        self.transport.resume_reading()

    def _with_our_headers(self, head: bytes) -> bytes:
        """Add our own headers before all others: the first of each name counts, so the client cannot set them."""
        assert self.transport is not None
        address = (self.transport.get_extra_info("peername") or ("",))[0].encode()
        scheme = b"http" if self.transport.get_extra_info("sslcontext") is None else b"https"
        line, _, rest = head.partition(b"\r\n")
        ours = b"".join(b"%s: %s\r\n" % pair for pair in ((CLIENT, address), (SCHEME, scheme), (PART, b"0")))
        return line + b"\r\n" + ours + rest

    def _serve_here(self, head: bytes) -> None:
        assert self.transport is not None and self._make_local is not None
        self._connections.discard(self)
        protocol = self._make_local()
        protocol.connection_made(self.transport)
        if self.transport.is_closing():
            protocol.connection_lost(None)
            return
        protocol.data_received(head)
        self.transport.set_protocol(protocol)
        self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        super().connection_lost(error)

    def shutdown(self) -> None:
        """Nothing to do: the worker is signalled too and ends endless streams."""


def parse_head(head: bytes) -> HTTPConnection:
    """Parse a head that uvicorn has read and serialised into what routing needs."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=len(head))
    connection.receive_data(head)
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    path, _, query = request.target.partition(b"?")
    headers = list(request.headers)
    offered = b",".join(value for name, value in headers if name == b"sec-websocket-protocol").decode("latin-1")
    scope = {"type": "websocket", "path": unquote(path.decode("ascii")), "query_string": query, "headers": headers}
    return HTTPConnection(scope | {"subprotocols": [name.strip() for name in offered.split(",")]})


def response_bytes(response: Response) -> bytes:
    """A whole response that closes the connection, for a request that was read elsewhere."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    connection.next_event()
    headers = [*response.raw_headers, (b"connection", b"close")]
    head = h11.Response(status_code=response.status_code, headers=headers)
    events = (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage())
    return b"".join(connection.send(event) or b"" for event in events)
