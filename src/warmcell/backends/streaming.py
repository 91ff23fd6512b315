"""Output as it comes: one run as an asynchronous iteration over what it writes, and last its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import InvalidRequest
from warmcell.core.output_events import OutputEvent, ResultEvent, StreamEvent
from warmcell.core.types import ExecResult
from warmcell.lifetime.output_channel import OutputChannel
from warmcell.runner.listening import Listener

if TYPE_CHECKING:
    from warmcell.runner.listening import Stream

#: Carries a run out while somebody listens. Cancelled, it ends the run before it ends itself.
Heard = Callable[[Listener], Coroutine[Any, Any, ExecResult]]


async def stream(execute: Heard) -> AsyncIterator[StreamEvent]:
    """The run begins with the iteration and ends with it, whoever leaves first.

    Who reads slowly makes the guest wait, on its own time. What `execute` raises is raised when all was read.
    """
    channel: OutputChannel[Stream] = OutputChannel()
    run = asyncio.create_task(execute(channel))
    run.add_done_callback(lambda _: channel.end())
    try:
        while (piece := await channel.next()) is not None:
            yield OutputEvent(*piece)
        yield ResultEvent(run.result())
    finally:
        await _end(run)
        channel.close()


def refuse_descriptor(backend: str, stdin: int) -> None:
    """For backends whose guests have all of their input when they begin."""
    if stdin >= 0:
        raise InvalidRequest(
            f"the {backend} backend takes no descriptor: its guests have all of their input when they begin",
            field="stdin",
            hint="give it as ExecRequest(stdin=...), or use ProcessBackend, which passes it on as it comes",
        )


async def _end(run: asyncio.Task[ExecResult]) -> None:
    """Waits until it has really ended, however often we are cancelled meanwhile."""
    run.cancel()
    while not run.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([run])
    if not run.cancelled():
        run.exception()  # looked at, so that asyncio does not complain that nobody did
