"""Server-sent events: what happens, while it happens, and last how it ended."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from warmcell.core.errors import SandboxError
from warmcell.core.output_events import OutputEvent
from warmcell.interfaces.serve.exchange import Refused, plain_error, plain_refusal

#: A client that hears nothing for longer is told that what it waits for goes on.
KEEPALIVE_SECONDS = 15.0
#: What may wait for a client that reads slowly; then the guest waits.
MOST_WAITING = 16
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_END: Any = object()
#: Tells one event: its name and what is said.
Tell = Callable[[str, object], Awaitable[None]]


def wants_events(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


def event_stream(events: AsyncIterator[str], on_end: Callable[[], Awaitable[None]] | None = None) -> Response:
    """`on_end` is called once, also where the client had gone before the first event."""
    return _EventStream(events, on_end)


class _EventStream(StreamingResponse):
    def __init__(self, events: AsyncIterator[str], on_end: Callable[[], Awaitable[None]] | None) -> None:
        super().__init__(_with_last(events), media_type="text/event-stream", headers=_HEADERS)
        self._on_end = on_end

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._on_end is not None:
                await self._on_end()


def event(name: str, data: object, identity: str | None = None) -> str:
    """In ASCII, one line of data: nothing that a guest wrote can begin another event."""
    head = "" if identity is None else f"id: {identity}\n"
    return f"{head}event: {name}\ndata: {json.dumps(data, ensure_ascii=True, default=str)}\n\n"


async def _with_last(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """The head of the answer has gone: what goes wrong now is the last event."""
    try:
        async with aclosing(events) as items:  # type: ignore[type-var]
            async for item in items:
                yield item
    except SandboxError as error:
        yield event("error", {"error": plain_error(error)})
    except Refused as error:
        yield event("error", {"error": plain_refusal(error)})


async def with_pauses(items: AsyncIterator[Any], until: asyncio.Event | None = None) -> AsyncIterator[Any]:
    """The same, with None whenever nothing came for a while. Ends with `Refused` when `until` is set."""
    async with aclosing(items):  # type: ignore[type-var]
        ending = asyncio.ensure_future((until or asyncio.Event()).wait())
        following = asyncio.ensure_future(anext(items, _END))
        try:
            while True:
                await asyncio.wait([following, ending], timeout=KEEPALIVE_SECONDS, return_when="FIRST_COMPLETED")
                if following.done():
                    if (item := following.result()) is _END:
                        return
                    following = asyncio.ensure_future(anext(items, _END))
                    yield item
                elif ending.done():
                    raise Refused(503, "the server is about to end", headers={"Retry-After": "5"})
                else:
                    yield None
        finally:
            ending.cancel()
            following.cancel()
            await asyncio.wait([following, ending])
            if not following.cancelled():
                following.exception()


async def told(work: Callable[[Tell], Awaitable[object]]) -> AsyncIterator[str]:
    """The events that `work` tells, and last `result` with what it returns. A client that hangs up ends it."""
    async with aclosing(with_pauses(_items(work))) as items:  # type: ignore[type-var]
        async for item in items:
            yield ": it goes on\n\n" if item is None else event(*item)


async def _items(work: Callable[[Tell], Awaitable[object]]) -> AsyncIterator[tuple[str, object]]:
    heard: asyncio.Queue[tuple[str, object] | None] = asyncio.Queue(MOST_WAITING)

    async def tell(name: str, data: object) -> None:
        await heard.put((name, data))

    async def carried_out() -> object:
        try:
            return await work(tell)
        finally:
            await heard.put(None)

    running = asyncio.ensure_future(carried_out())
    try:
        while (item := await heard.get()) is not None:
            yield item
        yield "result", await running
    finally:
        running.cancel()
        while not running.done():  # nobody hears it any more, and it must not wait for that
            while not heard.empty():
                heard.get_nowait()
            await asyncio.wait([running], timeout=0.05)
        if not running.cancelled():
            running.exception()


class OutputTexts:
    """Bytes of two streams as events: text for people, in which no character is cut, and base64 for programs."""

    def __init__(self) -> None:
        self._decoders = {name: getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}

    def plain(self, output: OutputEvent) -> dict[str, str]:
        text = self._decoders[output.stream].decode(output.data)
        return {"text": text, "base64": b64encode(output.data).decode()}
