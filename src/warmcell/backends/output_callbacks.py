"""`on_stdout` and `on_stderr`: the output of a run as text, as it arrives."""

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
#: May return an awaitable, which is awaited before the next piece.
OnText = Callable[[str], object]
#: Consumes the events of a run and returns its result.
Follow = Callable[[AsyncIterator[StreamEvent]], Awaitable[ExecResult]]


def following(on_stdout: OnText | None, on_stderr: OnText | None) -> Follow | None:
    """None if there are no callbacks: such a run costs nothing more."""
    if on_stdout is None and on_stderr is None:
        return None
    texts = Texts(on_stdout, on_stderr)
    return partial(_follow, texts)


async def follow(events: AsyncIterator[StreamEvent], on_stdout: OnText | None, on_stderr: OnText | None) -> ExecResult:
    """The result of a run with callbacks."""
    return await _follow(Texts(on_stdout, on_stderr), events)


async def _follow(texts: Texts, events: AsyncIterator[StreamEvent]) -> ExecResult:
    async with aclosing(cast("AsyncGenerator[StreamEvent]", events)):  # closing it early ends the run
        while True:
            event = await _next(events, texts)
            if isinstance(event, ResultEvent):
                return event.result
            await texts.deliver(event)


def call_with_output(
    function: Callable[..., Coroutine[Any, Any, T]], callbacks: Mapping[str, OnText | None], *args: Any, **others: Any
) -> T:
    """The result of a coroutine function, for blocking code: the calling thread calls the callbacks."""
    from warmcell.lifetime.portal import CallbackQueue, portal

    queue, wrapped = CallbackQueue(), dict[str, Any](callbacks)
    for name, callback in callbacks.items():
        refuse_coroutine(name, callback)
        if callable(callback):
            wrapped[name] = queue.wrap(callback)
    return portal.call_with_callbacks(queue, function, *args, **wrapped, **others)


def refuse_coroutine(name: str, callback: object) -> None:
    if inspect.iscoroutinefunction(callback):
        raise InvalidRequest("is a coroutine function", field=name, hint="use the async form, or a plain function")


async def _next(events: AsyncIterator[StreamEvent], texts: Texts) -> StreamEvent:
    """Delivers the rest of the text before the last event, and before an error is raised."""
    try:
        event = await anext(events)
    except SandboxError:
        await texts.finish()
        raise
    if isinstance(event, ResultEvent):
        await texts.finish()
    return event


class Texts:
    """Both streams of one run, and their callbacks."""

    def __init__(self, on_stdout: OnText | None, on_stderr: OnText | None) -> None:
        self._texts = {"stdout": _Text(on_stdout, "on_stdout"), "stderr": _Text(on_stderr, "on_stderr")}

    async def deliver(self, event: OutputEvent) -> None:
        await self._texts[event.stream].deliver(event.data)

    async def finish(self) -> None:
        for text in self._texts.values():
            await text.deliver(b"", is_last=True)


class _Text:
    """One stream. Joins a character that is split between two pieces; invalid UTF-8 is replaced, as in results."""

    def __init__(self, callback: OnText | None, name: str) -> None:
        if callback is not None and not callable(callback):
            raise InvalidRequest(f"must be callable, not {type(callback).__name__}", field=name)
        self._callback = callback
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    async def deliver(self, data: bytes, is_last: bool = False) -> None:
        if self._callback is None:
            return
        text = self._decoder.decode(data, is_last)
        if text:
            answer = self._callback(text)
            if inspect.isawaitable(answer):
                await answer
