"""Operations of a sandbox: `close` ends them with `SandboxDestroyed`, and cancelling a caller is still a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.helpers import cancel_at_every_await

from warmcell.core.errors import SandboxDestroyed
from warmcell.sandbox.local.operations import Operations


async def wait_forever() -> None:
    await asyncio.Event().wait()


async def end_of(
    work: Callable[[Operations], Coroutine[Any, Any, object]], act: Callable[[Operations, Any], object]
) -> tuple[BaseException | None, int]:
    """How a task ends, and how many of its cancellations are left."""
    operations, left = Operations(), -1

    async def call() -> None:
        nonlocal left
        try:
            await work(operations)
        finally:
            task = asyncio.current_task()
            assert task is not None
            left = task.cancelling()

    task = asyncio.ensure_future(call())
    await asyncio.sleep(0)
    closing = act(operations, task)
    if asyncio.iscoroutine(closing):
        await closing
    await asyncio.wait([task], timeout=30)
    assert not operations.has_others
    return (asyncio.CancelledError() if task.cancelled() else task.exception()), left


async def run_once(operations: Operations) -> None:
    await operations.run(wait_forever())


async def run_nested(operations: Operations) -> None:
    await operations.run(run_once(operations))


async def close_and_cancel(operations: Operations, task: asyncio.Task[None]) -> None:
    closing = asyncio.ensure_future(operations.close())
    await asyncio.sleep(0)
    task.cancel()
    await closing


@pytest.mark.parametrize("work", [run_once, run_nested])
async def test_close_ends_an_operation_and_leaves_no_cancellation(work: Any) -> None:
    error, left = await end_of(work, lambda operations, task: operations.close())
    assert isinstance(error, SandboxDestroyed) and left == 0


@pytest.mark.parametrize("work", [run_once, run_nested])
@pytest.mark.parametrize("act", [lambda operations, task: task.cancel(), close_and_cancel])
async def test_a_cancelled_caller_stays_cancelled(work: Any, act: Any) -> None:
    error, left = await end_of(work, act)
    assert isinstance(error, asyncio.CancelledError) and left == 1


async def test_a_timeout_of_the_caller() -> None:
    async def work(operations: Operations) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await operations.run(wait_forever())
        await operations.run(wait_forever())

    async def close_later(operations: Operations, task: object) -> None:
        await asyncio.sleep(0.1)
        await operations.close()

    error, left = await end_of(work, close_later)
    assert isinstance(error, SandboxDestroyed) and left == 0


async def test_close_waits_for_the_clean_up_of_what_it_ends() -> None:
    events = []

    async def clean_up_slowly() -> None:
        try:
            await wait_forever()
        finally:
            await asyncio.sleep(0.02)
            events.append("cleaned up")

    operations = Operations()
    task = asyncio.ensure_future(operations.run(clean_up_slowly()))
    await asyncio.sleep(0)
    await asyncio.gather(operations.close(), operations.close())
    events.append("closed")
    assert events == ["cleaned up", "closed"]
    with pytest.raises(SandboxDestroyed):
        await task


async def test_an_operation_that_completes_all_the_same() -> None:
    async def complete() -> str:
        try:
            await wait_forever()
        except asyncio.CancelledError:
            return "done"
        return ""

    operations = Operations()
    task = asyncio.ensure_future(operations.run(complete()))
    await asyncio.sleep(0)
    await operations.close()
    assert await task == "done" and task.cancelling() == 0


@pytest.mark.parametrize("is_late", [False, True])
async def test_what_an_operation_made_reaches_its_caller(is_late: bool) -> None:
    operations, made = Operations(), []

    async def make() -> str:
        await asyncio.sleep(0.001)
        made.append("one")
        return "one"

    async for run in cancel_at_every_await(lambda: operations.run(make()), with_tasks=True, is_late=is_late):
        assert made == ["one"] * run.is_complete
