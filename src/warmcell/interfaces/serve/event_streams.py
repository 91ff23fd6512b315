"""Server-sent events: output while it is produced, and last the result."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, aclosing
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from starlette.requests import Request
from starlette.responses import Response

from warmcell.core.errors import SandboxError
from warmcell.core.output_events import OutputEvent
from warmcell.interfaces.serve.requests import OWNER, while_connected
from warmcell.interfaces.serve.responses import (
    ClientDisconnected,
    HttpError,
    count_characters,
    error_to_dict,
    has_long_text,
    json_chunks,
    shutting_down,
)
from warmcell.lifetime.threads import cancel_and_wait

#: A comment is sent after so many seconds without an event.
KEEPALIVE_SECONDS = 15.0
KEEPALIVE = ": keepalive\n\n"
#: Events that may wait for a client that reads slowly; then the guest has to wait.
MAX_QUEUED = 16
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_END: Any = object()
#: How many pieces of streams are sent in one iteration of the event loop.
_PIECES_AT_ONCE = 2
#: The largest piece.
_PIECE = 1 << 18
#: Sends one event: its name and its data.
Emit = Callable[[str, object], Awaitable[None]]
#: Counts so many bytes as unread while a block sends them.
CountUnread = Callable[[int], AbstractContextManager[object]]


def wants_events(request: Request) -> bool:
    """Not for HEAD: its response has no body, and an endless stream would never end it."""
    return request.method != "HEAD" and "text/event-stream" in request.headers.get("accept", "")


class EventStream(Response):
    """Starlette's StreamingResponse cancels again and again until its body ends; this one cancels once and waits."""

    #: What makes the events waits and runs with what the request's body said.
    keeps_body = True

    def __init__(self, events: AsyncIterator[str], on_end: Callable[[], Awaitable[None]] | None = None) -> None:
        """`on_end` is called once, even if the client disconnected before the first event."""
        super().__init__(media_type="text/event-stream", headers=_HEADERS)
        del self.headers["content-length"]
        self._events, self._on_end = events, on_end

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await while_connected(Request(scope, receive), self._send(send, scope.get(OWNER, "")))
        except ClientDisconnected:
            return
        except HttpError as error:
            if error.status == 401:  # the token was revoked: the stream is cut
                return
            last = format_event("error", {"error": error_to_dict(error)})
            await send({"type": "http.response.body", "body": last.encode()})
        finally:
            if self._on_end is not None:
                await self._on_end()

    async def _send(self, send: Any, owner: str) -> None:
        turns = StreamTurns.of_this_loop()
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(_with_error(self._events)) as items:  # type: ignore[type-var]
            async for item in items:
                for start in range(0, len(item), _PIECE):
                    await turns.wait(owner)
                    piece = item[start : start + _PIECE].encode()
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class StreamTurns:
    """Orders the pieces of all streams of one event loop: a few are sent in each iteration, and owners take turns.

    Without it, hundreds of streams of one process would send each piece in the same iteration, and delay every other
    request each time.
    """

    _of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, StreamTurns]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self._free, self._is_counting = _PIECES_AT_ONCE, False
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}

    @classmethod
    def of_this_loop(cls) -> StreamTurns:
        return cls._of_loops.setdefault(asyncio.get_running_loop(), cls())

    async def wait(self, owner: str) -> None:
        """Return when a piece of this owner may be sent."""
        loop = asyncio.get_running_loop()
        if not self._is_counting:
            self._is_counting = True
            loop.call_soon(self._begin_iteration, loop)
        if self._free:
            self._free -= 1
            return
        turn = loop.create_future()
        self._lines.setdefault(owner, deque()).append(turn)
        await turn

    def _begin_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        self._free = _PIECES_AT_ONCE
        while self._free and self._lines:
            owner, line = next(iter(self._lines.items()))
            del self._lines[owner]
            turn = line.popleft()
            if line:
                self._lines[owner] = line  # behind the other owners
            if not turn.done():  # else its stream has ended
                turn.set_result(None)
                self._free -= 1
        self._is_counting = self._free < _PIECES_AT_ONCE
        if self._is_counting:
            loop.call_soon(self._begin_iteration, loop)


def format_event(name: str, data: object, identity: str | None = None) -> str:
    """Format one event in ASCII, with the data on one line: a guest's output cannot start another event."""
    head = "" if identity is None else f"id: {identity}\n"
    return f"{head}event: {name}\ndata: {json.dumps(data, ensure_ascii=True, default=str)}\n\n"


def event_chunks(name: str, data: object) -> Iterator[str]:
    """`format_event`; an event with long texts is encoded in several chunks, one for each turn."""
    if has_long_text(data):
        yield from json_chunks(data, f"event: {name}\ndata: ", "\n\n")
    else:
        yield format_event(name, data)


async def _with_error(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """The status has been sent already, so an error becomes the last event."""
    try:
        async with aclosing(events) as items:  # type: ignore[type-var]
            async for item in items:
                yield item
    except (SandboxError, HttpError) as error:
        yield format_event("error", {"error": error_to_dict(error)})


async def with_keepalives(items: AsyncIterator[Any], until: asyncio.Event | None = None) -> AsyncIterator[Any]:
    """Yield the items, and None after each `KEEPALIVE_SECONDS` of silence. Raises `HttpError` when `until` is set."""
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
                    raise shutting_down()
                else:
                    yield None
        finally:
            # `items` cannot be closed while `following` is inside it, also when we are cancelled a second time here.
            await cancel_and_wait(following, ending)


async def stream_events(work: Callable[[Emit], Awaitable[object]], count_unread: CountUnread) -> AsyncIterator[str]:
    """Yield the events that `work` emits, and last `result` with its return value. Closing the iterator cancels it."""
    async with aclosing(with_keepalives(_run_and_queue(work))) as items:  # type: ignore[type-var]
        async for item in items:
            if item is None:
                yield KEEPALIVE
                continue
            with count_unread(count_characters(item[1])):
                for chunk in event_chunks(*item):
                    yield chunk


async def _run_and_queue(work: Callable[[Emit], Awaitable[object]]) -> AsyncIterator[tuple[str, object]]:
    queue: asyncio.Queue[tuple[str, object] | None] = asyncio.Queue()
    room = asyncio.Semaphore(MAX_QUEUED)

    async def emit(name: str, data: object) -> None:
        await room.acquire()
        queue.put_nowait((name, data))

    running = asyncio.ensure_future(work(emit))
    running.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (item := await queue.get()) is not None:
            room.release()
            yield item
        yield "result", await running
    finally:
        await cancel_and_wait(running)


class OutputDecoder:
    """Converts output to events: text that never splits a character, and base64 for programs."""

    def __init__(self) -> None:
        self._decoders = {name: getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}

    def to_dict(self, output: OutputEvent) -> dict[str, str]:
        text = self._decoders[output.stream].decode(output.data)
        return {"text": text, "base64": b64encode(output.data).decode()}
