"""One queue for several processes: the front has it, workers ask it for places, in lines of JSON over a socket."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from warmcell.core.errors import BackendBusy, BackendUnavailable
from warmcell.lifetime.tenant_queue import TenantQueue, TooManyWaiting


class PlacesOfWorker:
    """In the front: what one worker has and waits for. All of it is free again at `close`, however the worker ended."""

    def __init__(self, queue: TenantQueue, writer: asyncio.StreamWriter) -> None:
        self._queue, self._writer = queue, writer
        self._held: dict[int, asyncio.Task[None]] = {}

    def hear(self, message: dict[str, Any]) -> None:
        if "ask" in message:
            self._held[message["ask"]] = asyncio.ensure_future(self._hold(message))
        elif "leave" in message:
            task = self._held.pop(message["leave"], None)
            if task is not None:
                task.cancel()

    async def _hold(self, asked: dict[str, Any]) -> None:
        """Until it is cancelled, be it in the line or in its place."""
        try:
            async with self._queue.place(asked["tenant"], asked["share"], asked["timeout"]):
                send(self._writer, {"has": asked["ask"]})
                await asyncio.get_running_loop().create_future()
        except BackendBusy as error:
            self._held.pop(asked["ask"], None)
            told = {"busy": asked["ask"], "waited": error.waited, "is_own_line": isinstance(error, TooManyWaiting)}
            send(self._writer, told)

    def close(self) -> None:
        for task in self._held.values():
            task.cancel()
        self._held.clear()


class FrontQueue:
    """In a worker: stands where `TenantQueue` stands in a server of one process, and raises what it raises."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[None]] = {}

    @property
    def waiting(self) -> int:
        """Of this worker's own requests."""
        return len(self._asked)

    @asynccontextmanager
    async def place(self, tenant: str, share: int, timeout: float) -> AsyncIterator[None]:
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        send(self._writer, {"ask": number, "tenant": tenant, "share": share, "timeout": timeout})
        try:
            await answer
            yield
        finally:
            self._asked.pop(number, None)
            send(self._writer, {"leave": number})

    def hear(self, message: dict[str, Any]) -> None:
        answer = self._asked.pop(message.get("has", message.get("busy", -1)), None)
        if answer is None or answer.done():  # whoever asked has gone, and has said so
            return
        if "has" in message:
            answer.set_result(None)
        elif message["is_own_line"]:
            answer.set_exception(TooManyWaiting(message["waited"], hint="ask for less at once"))
        else:
            answer.set_exception(BackendBusy(message["waited"], hint="come again later"))

    def close(self) -> None:
        """The front has gone."""
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(BackendUnavailable("the server is about to end", hint="come again later"))
        self._asked.clear()


def send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    """To one who may have gone; whoever reads finds that out."""
    if not writer.is_closing():
        writer.write(json.dumps(message).encode() + b"\n")


async def messages(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Until the other side has gone."""
    while line := await _line(reader):
        yield json.loads(line)


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ConnectionError:
        return b""
