"""WebSockets through a front: once a worker is chosen, bytes go both ways, and what they say is its own matter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast
from urllib.parse import unquote

import h11
from starlette.requests import HTTPConnection

from warmcell.core.errors import SandboxError
from warmcell.interfaces.serve.exchange import Refused, refusal
from warmcell.interfaces.serve.front.workers import Worker

Choose = Callable[[HTTPConnection], Awaitable[Worker]]


class Side(asyncio.Protocol):
    """One of two connections: what comes here goes out there, no faster than it is taken; they end together."""

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


class SocketRelay(Side):
    """The client's side, in the place of uvicorn's own protocols for WebSockets: it is given the whole head first."""

    def __init__(self, choose: Choose, config: Any, server_state: Any, app_state: Any) -> None:
        super().__init__()
        self._choose = choose
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
            worker = await self._choose(asked(head))
            await asyncio.get_running_loop().create_unix_connection(lambda: cast("Side", self.other), worker.path)
        except (SandboxError, Refused, OSError) as error:
            self._refuse(error if not isinstance(error, OSError) else Refused(503, "the worker has ended"))
            return
        if self.transport.is_closing():  # it has gone meanwhile, when there was nobody to tell
            self.other.connection_lost(None)
            cast("asyncio.Transport", self.other.transport).close()
            return
        super().data_received(head)
        self.transport.resume_reading()

    def _refuse(self, error: Exception) -> None:
        assert self.transport is not None
        said = refusal(error)
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        connection.next_event()
        head = h11.Response(status_code=said.status_code, headers=[*said.raw_headers, (b"connection", b"close")])
        for event in (head, h11.Data(data=bytes(said.body)), h11.EndOfMessage()):
            self.transport.write(connection.send(event) or b"")
        self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        super().connection_lost(error)

    def shutdown(self) -> None:
        """The worker hears of the end too, and ends what stands for ever."""


def asked(head: bytes) -> HTTPConnection:
    """What routing looks at; the head was read and written out by uvicorn before."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=len(head))
    connection.receive_data(head)
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    path, _, query = request.target.partition(b"?")
    headers = list(request.headers)
    offered = b",".join(value for name, value in headers if name == b"sec-websocket-protocol").decode("latin-1")
    scope = {"type": "websocket", "path": unquote(path.decode("ascii")), "query_string": query, "headers": headers}
    return HTTPConnection(scope | {"subprotocols": [name.strip() for name in offered.split(",")]})
