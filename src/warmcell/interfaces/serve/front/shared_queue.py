"""One queue for several processes: it is in the front, and workers request slots in lines of JSON over a socket."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from warmcell.core.errors import BackendBusy
from warmcell.interfaces.serve.front.control import Control, FrontRequests, Message
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
