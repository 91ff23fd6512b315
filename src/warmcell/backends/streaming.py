"""Output as it arrives: one run as an asynchronous iterator over its output, then its result."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import InvalidRequest
from warmcell.core.output_events import OutputEvent, ResultEvent, StreamEvent
from warmcell.core.records import replace
from warmcell.core.types import ExecRequest, ExecResult
from warmcell.lifetime.output_channel import OutputChannel
from warmcell.lifetime.threads import cancel_and_wait
from warmcell.runner.listening import Listener

if TYPE_CHECKING:
    from warmcell.runner.listening import Stream

#: Carries out a run with a listener. If cancelled, it ends the run before it returns.
ExecuteWithListener = Callable[[Listener], Coroutine[Any, Any, ExecResult]]


async def stream(execute: ExecuteWithListener) -> AsyncIterator[StreamEvent]:
    """The run starts and ends with the iteration.

    A slow reader makes the guest wait, on its own time. What `execute` raises is raised after all output was read.
    """
    channel: OutputChannel[Stream] = OutputChannel()
    run = asyncio.create_task(execute(channel))
    run.add_done_callback(lambda _: channel.end())
    try:
        while (piece := await channel.next()) is not None:
            yield OutputEvent(*piece)
        yield ResultEvent(run.result())
    finally:
        try:
            await cancel_and_wait(run)
        finally:
            channel.close()


def refuse_descriptor(backend: str, stdin: int) -> None:
    """For backends whose guests get all of their input at the start."""
    if stdin >= 0:
        raise InvalidRequest(
            f"the {backend} backend does not accept a descriptor: its guests get all of their input at the start",
            field="stdin",
            hint="give it as ExecRequest(stdin=...), or use ProcessBackend, which passes input on as it arrives",
        )


def read_descriptor(request: ExecRequest, stdin: int) -> ExecRequest:
    """For the same backends, in blocking calls: the request with all of the descriptor's data, if one is given."""
    if stdin < 0:
        return request
    with os.fdopen(os.dup(stdin), "rb") as source:
        return replace(request, stdin=source.read())
