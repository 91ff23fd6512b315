"""`on_stdout` and `on_stderr`: what a run writes, as text, while it comes."""

from __future__ import annotations

import codecs
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar, cast

from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.core.output_events import OutputEvent, ResultEvent, StreamEvent
from warmcell.core.types import ExecResult

T = TypeVar("T")
#: May return an awaitable, which is awaited before more is read.
OnText = Callable[[str], object]
#: Goes through the events of a run to its result.
Follow = Callable[[AsyncIterator[StreamEvent]], Awaitable[ExecResult]]


def following(on_stdout: OnText | None, on_stderr: OnText | None) -> Follow | None:
    """None where nobody wants to hear anything: such a run costs what it always did."""
    if on_stdout is None and on_stderr is None:
        return None
    texts = Texts(on_stdout, on_stderr)
    return partial(_follow, texts)


async def follow(events: AsyncIterator[StreamEvent], on_stdout: OnText | None, on_stderr: OnText | None) -> ExecResult:
    """The result of a run that somebody hears."""
    return await _follow(Texts(on_stdout, on_stderr), events)


async def _follow(texts: Texts, events: AsyncIterator[StreamEvent]) -> ExecResult:
    async with aclosing(cast("AsyncGenerator[StreamEvent]", events)):  # left early, it ends the run
        while True:
            event = await _next(events, texts)
            if isinstance(event, ResultEvent):
                return event.result
            await texts.hear(event)


def call_heard(
    function: Callable[..., Coroutine[Any, Any, T]], callbacks: Mapping[str, OnText | None], *args: Any, **others: Any
) -> T:
    """The result of a coroutine function, for blocking code: the calling thread calls what the run wants called."""
    from warmcell.lifetime.portal import Visits, portal

    visits, lifted = Visits(), dict[str, Any](callbacks)
    for name, callback in callbacks.items():
        refuse_coroutine(name, callback)
        if callable(callback):
            lifted[name] = visits.lift(callback)
    return portal.call_visited(visits, function, *args, **lifted, **others)


def refuse_coroutine(name: str, callback: object) -> None:
    if inspect.iscoroutinefunction(callback):
        raise InvalidRequest("is a coroutine function", field=name, hint="use the async form, or a plain function")


async def _next(events: AsyncIterator[StreamEvent], texts: Texts) -> StreamEvent:
    """Before the last event, and before what a limit calls for is raised, the rest of the text is told."""
    try:
        event = await anext(events)
    except SandboxError:
        await texts.finish()
        raise
    if isinstance(event, ResultEvent):
        await texts.finish()
    return event


class Texts:
    """Both streams of one run, and who hears them."""

    def __init__(self, on_stdout: OnText | None, on_stderr: OnText | None) -> None:
        self._texts = {"stdout": _Text(on_stdout, "on_stdout"), "stderr": _Text(on_stderr, "on_stderr")}

    async def hear(self, event: OutputEvent) -> None:
        await self._texts[event.stream].hear(event.data)

    async def finish(self) -> None:
        for text in self._texts.values():
            await text.hear(b"", is_last=True)


class _Text:
    """One stream. A character that is split over two pieces is one; what is no UTF-8 is replaced, as in results."""

    def __init__(self, callback: OnText | None, name: str) -> None:
        if callback is not None and not callable(callback):
            raise InvalidRequest(f"must be callable, not {type(callback).__name__}", field=name)
        self._callback = callback
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    async def hear(self, data: bytes, is_last: bool = False) -> None:
        if self._callback is None:
            return
        text = self._decoder.decode(data, is_last)
        if text:
            answer = self._callback(text)
            if inspect.isawaitable(answer):
                await answer
