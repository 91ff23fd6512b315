"""One run as an iteration over its output."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from warmcell import ExecResult
from warmcell.backends.streaming import stream
from warmcell.runner.listening import Listener


async def test_a_cancellation_while_the_run_ends_is_not_lost() -> None:
    """Such as that of a timeout around an iteration that was left: it would go on without its limit."""
    is_ending, may_end = asyncio.Event(), asyncio.Event()

    async def execute(listener: Listener) -> ExecResult:
        listener.deliver("stdout", b"x")
        try:
            await asyncio.sleep(600)
        finally:
            is_ending.set()
            await may_end.wait()
        return ExecResult()

    async def leave_early() -> None:
        async with aclosing(stream(execute)) as events:  # type: ignore[type-var]
            async for _ in events:
                break

    leaving = asyncio.create_task(leave_early())
    await is_ending.wait()
    leaving.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await leaving
