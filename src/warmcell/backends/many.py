"""Many requests through one backend: a bounded number at a time and in memory, outcomes as they finish."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sized
from typing import TypeVar

from warmcell.core.errors import BackendBusy, ExecutionFailed, InvalidRequest, NodeLost, SandboxError
from warmcell.core.output_events import Outcome
from warmcell.core.types import ExecRequest, ExecResult
from warmcell.lifetime.threads import cancel_and_wait

T = TypeVar("T")
Requests = Iterable[ExecRequest] | AsyncIterable[ExecRequest]
#: How often a request queues again after the backend's queue timed out.
_MOST_WAITS = 10
Execute = Callable[[ExecRequest], Awaitable[ExecResult]]
#: Called with the number of requests done, and how many there are if that is known.
OnProgress = Callable[[int, int | None], object]


async def count_processors(backend: object) -> int:
    """The number of processors that the backend's runs can use, on this host or in a cluster."""
    count = getattr(backend, "count_processors", None)
    return _own_processors() if count is None else max(1, int(await count()))


def _own_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_concurrency(value: object) -> int:
    if value is None:
        return 2 * _own_processors()  # while one run starts or ends, another computes
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 16:
        raise InvalidRequest("must be a whole number of at least 1", field="concurrency")
    return value


async def run_many(
    execute: Execute, requests: Requests, concurrency: int | None = None, on_progress: OnProgress | None = None
) -> AsyncIterator[Outcome]:
    """Outcomes as they finish. A request is taken from the iterable when there is a place for it.

    A slow reader slows the runs down: at most `concurrency` outcomes wait to be read. When the iteration is left or
    cancelled, running requests are ended first. Exceptions of the iterable of requests are raised here.
    """
    workers = _Workers(execute, requests, check_concurrency(concurrency))
    total = len(requests) if isinstance(requests, Sized) else None
    done = 0
    try:
        while (outcome := await workers.next()) is not None:
            done += 1
            if on_progress is not None:
                on_progress(done, total)
            yield outcome
    finally:
        await cancel_and_wait(*workers.tasks)


class _Workers:
    """Tasks that take requests and put outcomes into a queue, which holds as many as there are tasks."""

    def __init__(self, execute: Execute, requests: Requests, concurrency: int) -> None:
        self._execute = execute
        self._source = _enumerate(requests)
        self._source_lock = asyncio.Lock()
        self._done: asyncio.Queue[Outcome | BaseException | None] = asyncio.Queue(concurrency)
        self.tasks = [asyncio.create_task(self._work()) for _ in range(concurrency)]
        self._busy = concurrency

    async def next(self) -> Outcome | None:
        """None when there are no more."""
        while self._busy or not self._done.empty():
            item = await self._done.get()
            if isinstance(item, Outcome):
                return item
            self._busy -= 1
            if item is not None:
                raise item
        return None

    async def _work(self) -> None:
        problem: BaseException | None = None
        try:
            while (taken := await self._take()) is not None:
                await self._done.put(await attempt(self._execute, *taken))
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # the caller's iterable failed: the caller gets it
            problem = error
        await self._done.put(problem)

    async def _take(self) -> tuple[int, ExecRequest] | None:
        async with self._source_lock:  # an iterator serves one caller at a time
            return await anext(self._source, None)


async def attempt(execute: Execute, index: int, request: ExecRequest) -> Outcome:
    """One request. A failure of the host may not repeat in another cell, so there is a second attempt.

    A queue that timed out is not a failure: the guest never started, and a batch has time to queue again.
    """
    if not isinstance(request, ExecRequest):
        refusal = InvalidRequest(f"must be ExecRequest, not {type(request).__name__}", field=f"requests[{index}]")
        return Outcome(index, error=refusal)
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
            if failures > 1 or not _is_retryable(error):
                return Outcome(index, error=_as_sandbox_error(error))


def _is_retryable(error: Exception) -> bool:
    if isinstance(error, NodeLost):
        return False  # its backend has repeated it as often as the caller allows
    return not isinstance(error, SandboxError) or (error.fault == "host" and error.retryable)


def _as_sandbox_error(error: Exception) -> SandboxError:
    if isinstance(error, SandboxError):
        return error
    failure = ExecutionFailed(f"the backend failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


async def _enumerate(requests: Requests) -> AsyncIterator[tuple[int, ExecRequest]]:
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
    """An asynchronous generator for blocking code, run on the portal's loop."""
    from warmcell.lifetime.portal import portal

    async def take_one() -> list[T]:
        async for item in items:
            return [item]
        return []

    try:
        while found := portal.call(take_one):
            yield found[0]
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            portal.call(close)
