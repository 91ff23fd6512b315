"""One queue for several processes: it is in the front, and workers request slots in lines of JSON over a socket."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from warmcell.core.errors import BackendBusy, BackendUnavailable
from warmcell.interfaces.serve.front.control import Control, Message
from warmcell.lifetime.fair_semaphore import FairSemaphore, TooManyWaiting


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
        """The run has ended, or its client does not wait any more."""
        if (tenant := self._held.pop(number, None)) is not None:
            self._queue.release(tenant)
        elif (task := self._waiting.pop(number, None)) is not None:
            task.cancel()

    def close(self) -> None:
        for number in (*self._held, *self._waiting):
            self._leave(number)


class FrontQueue:
    """In a worker: has the interface and the exceptions of `FairSemaphore`."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[None]] = {}

    @property
    def waiting(self) -> int:
        """Requests of this worker that wait."""
        return len(self._pending)

    @asynccontextmanager
    async def slot(self, tenant: str, share: int, timeout: float) -> AsyncIterator[None]:
        number = next(self._numbers)
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        self._control.send({"ask": number, "tenant": tenant, "share": share, "timeout": timeout})
        try:
            await answer
            yield
        finally:
            self._pending.pop(number, None)
            self._control.send({"leave": number})

    def handle(self, message: Message) -> None:
        answer = self._pending.pop(message["has" if "has" in message else "busy"], None)
        if answer is None or answer.done():  # the request was cancelled and has sent 'leave'
            return
        if "has" in message:
            answer.set_result(None)
        elif message["is_own_line"]:
            answer.set_exception(TooManyWaiting(message["waited"], hint="send fewer requests at a time"))
        else:
            answer.set_exception(BackendBusy(message["waited"], hint="try again later"))

    def close(self) -> None:
        """Fail all waiting requests: the front has exited."""
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(BackendUnavailable("the server is shutting down", hint="try again later"))
        self._pending.clear()
