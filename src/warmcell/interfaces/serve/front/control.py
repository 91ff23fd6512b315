"""The connection between the front and a worker: lines of JSON both ways. Over it workers request slots of one queue,
which is in the front.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

from warmcell.core.errors import BackendBusy, BackendUnavailable
from warmcell.lifetime.fair_semaphore import FairSemaphore, TooManyWaiting

Message = dict[str, Any]


class Control(asyncio.Protocol):
    """Calls `handle` for each message. What is sent in one turn of the event loop leaves in one system call."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        #: The first message that came before `handle` was replaced.
        self.first: asyncio.Future[Message] = self._loop.create_future()
        self.handle: Callable[[Message], object] = self.first.set_result
        self.closed = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._partial = b""
        self._unsent: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self.handle(json.loads(line))

    def connection_lost(self, error: Exception | None) -> None:
        self.first.cancel()
        self.closed.set()

    def send(self, message: Message) -> None:
        """Send a message. Does nothing if the connection is closed, which sets `closed`."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(json.dumps(message).encode())

    def _flush(self) -> None:
        lines, self._unsent = self._unsent, []
        if lines and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"\n".join([*lines, b""]))

    def close(self) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()


async def open_control(connection: socket.socket) -> Control:
    _, control = await asyncio.get_running_loop().create_unix_connection(Control, sock=connection)
    return control


class FrontRequests:
    """In a worker: requests to the front that wait for an answer. A granted slot is returned at the end."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def _ask(self, begin: str, end: str, **fields: Any) -> AsyncIterator[None]:
        """Send a message `begin` and wait for its answer; send `end` afterwards."""
        number = next(self._numbers)
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        self._control.send({begin: number, **fields})
        try:
            await answer
            yield
        finally:
            self._pending.pop(number, None)
            self._control.send({end: number})

    def _answer(self, number: int, refusal: Exception | None) -> None:
        answer = self._pending.pop(number, None)
        if answer is None or answer.done():  # the request was cancelled, and the end was sent
            return
        if refusal is None:
            answer.set_result(None)
        else:
            answer.set_exception(refusal)

    def close(self) -> None:
        """Fail all waiting requests: the front has exited."""
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(BackendUnavailable("the server is shutting down", hint="try again later"))
        self._pending.clear()


class WorkerSlots:
    """In the front: the slots that one worker holds or waits for. `close` frees all, however the worker ended."""

    def __init__(self, queue: FairSemaphore, control: Control) -> None:
        self._queue, self._control = queue, control
        #: By number: the tenants of slots that the worker has, and the tasks that wait for others.
        self._held: dict[int, str] = {}
        self._waiting: dict[int, asyncio.Task[None]] = {}

    def handle(self, message: Message) -> None:
        if "leave" in message:
            self._leave(message["leave"])
        elif self._queue.try_acquire(message["tenant"], message["share"]):
            self._give(message)
        else:
            self._waiting[message["ask"]] = asyncio.ensure_future(self._wait(message))

    async def _wait(self, request: Message) -> None:
        number, reply = request["ask"], None
        try:
            await self._queue.acquire_async(request["timeout"], request["tenant"], request["share"])
        except BackendBusy as error:
            reply = {"busy": number, "waited": error.waited, "is_own_line": isinstance(error, TooManyWaiting)}
        self._waiting.pop(number, None)
        if reply is None:
            self._give(request)
        else:
            self._control.send(reply)

    def _give(self, request: Message) -> None:
        self._held[request["ask"]] = request["tenant"]
        self._control.send({"has": request["ask"]})

    def _leave(self, number: int) -> None:
        """Free a slot: the run has ended, or its client no longer waits."""
        if (tenant := self._held.pop(number, None)) is not None:
            self._queue.release(tenant)
        elif (task := self._waiting.pop(number, None)) is not None:
            task.cancel()

    def close(self) -> None:
        for number in (*self._held, *self._waiting):
            self._leave(number)


class FrontQueue(FrontRequests):
    """In a worker: has the interface and the exceptions of `FairSemaphore`."""

    @property
    def waiting(self) -> int:
        """Requests of this worker that wait."""
        return len(self._pending)

    def slot(self, tenant: str, share: int, timeout: float) -> AbstractAsyncContextManager[None]:
        return self._ask("ask", "leave", tenant=tenant, share=share, timeout=timeout)

    def handle(self, message: Message) -> None:
        if "has" in message:
            self._answer(message["has"], None)
        elif message["is_own_line"]:
            self._answer(message["busy"], TooManyWaiting(message["waited"], hint="send fewer requests at a time"))
        else:
            self._answer(message["busy"], BackendBusy(message["waited"], hint="try again later"))
