"""Many requests through one backend: as they finish, so many at a time, and never more in memory than that."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from warmcell.core.errors import BackendBusy, ExecutionFailed, InvalidRequest, SandboxError
from warmcell.core.outcomes import Outcome
from warmcell.core.types import ExecRequest, ExecResult

T = TypeVar("T")
Requests = Iterable[ExecRequest] | AsyncIterable[ExecRequest]
#: How often a request asks for a place again, each time for as long as the backend's queue lets it wait.
_MOST_WAITS = 10
Execute = Callable[[ExecRequest], Awaitable[ExecResult]]


def default_concurrency() -> int:
    """Twice the processors: while one run is being made or ended, another computes."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 2 * processors


def check_concurrency(value: object) -> int:
    if value is None:
        return default_concurrency()
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 16:
        raise InvalidRequest("must be a whole number of at least 1", field="concurrency")
    return value


async def run_many(execute: Execute, requests: Requests, concurrency: int | None = None) -> AsyncIterator[Outcome]:
    """The outcomes, as they come. Requests are drawn when there is a place for them, one that was drawn is carried out.

    Who reads slowly slows the runs down: beside those under way at most as many outcomes wait to be read. When the
    iteration is left or cancelled, what is under way is ended first. What the iterable of requests raises is raised.
    """
    line = _Line(execute, requests, check_concurrency(concurrency))
    try:
        while (outcome := await line.next()) is not None:
            yield outcome
    finally:
        await line.end()


class _Line:
    """Workers that draw requests and put outcomes into a queue, which holds as many as there are workers."""

    def __init__(self, execute: Execute, requests: Requests, concurrency: int) -> None:
        self._execute = execute
        self._source = _numbered(requests)
        self._drawing = asyncio.Lock()
        self._done: asyncio.Queue[Outcome | BaseException | None] = asyncio.Queue(concurrency)
        self._workers = [asyncio.create_task(self._work()) for _ in range(concurrency)]
        self._busy = concurrency

    async def next(self) -> Outcome | None:
        """None: all is done."""
        while self._busy or not self._done.empty():
            item = await self._done.get()
            if isinstance(item, Outcome):
                return item
            self._busy -= 1
            if item is not None:
                raise item
        return None

    async def end(self) -> None:
        """Cancels what is under way and waits until it has really ended, however often we are cancelled meanwhile."""
        for worker in self._workers:
            worker.cancel()
        while any(not worker.done() for worker in self._workers):
            with suppress(asyncio.CancelledError):
                await asyncio.wait(self._workers)

    async def _work(self) -> None:
        problem: BaseException | None = None
        try:
            while (drawn := await self._draw()) is not None:
                await self._done.put(await attempt(self._execute, *drawn))
        except Exception as error:  # the caller's iterable failed: theirs to see
            problem = error
        await self._done.put(problem)

    async def _draw(self) -> tuple[int, ExecRequest] | None:
        async with self._drawing:  # an iterator can be asked by one at a time
            return await anext(self._source, None)


async def attempt(execute: Execute, index: int, request: ExecRequest) -> Outcome:
    """One request. What the host failed at may work in another cell: it is tried once more, then told as it is.

    To be kept waiting is no failure: the guest never started, and whoever has many requests has the time to ask again.
    """
    if not isinstance(request, ExecRequest):
        refused = InvalidRequest(f"must be ExecRequest, not {type(request).__name__}", field=f"requests[{index}]")
        return Outcome(index, error=refused)
    failures = waits = 0
    while True:
        try:
            return Outcome(index, await execute(request))
        except BackendBusy as error:
            waits += 1
            if waits > _MOST_WAITS:
                return Outcome(index, error=error)
        except Exception as error:
            failures += 1
            if failures > 1 or not _is_worth_another(error):
                return Outcome(index, error=_typed(error))


def _is_worth_another(error: Exception) -> bool:
    return not isinstance(error, SandboxError) or (error.fault == "host" and error.retryable)


def _typed(error: Exception) -> SandboxError:
    if isinstance(error, SandboxError):
        return error
    failure = ExecutionFailed(f"the backend failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


async def _numbered(requests: Requests) -> AsyncIterator[tuple[int, ExecRequest]]:
    index = 0
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield index, request
            index += 1
        return
    for request in requests:
        yield index, request
        index += 1


def in_step(items: AsyncIterator[T]) -> Iterator[T]:
    """An asynchronous generator for blocking code, carried out on the portal's loop."""
    from warmcell.lifetime.portal import portal

    async def following() -> list[T]:
        async for item in items:
            return [item]
        return []

    try:
        while found := portal.call(following):
            yield found[0]
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            portal.call(close)
