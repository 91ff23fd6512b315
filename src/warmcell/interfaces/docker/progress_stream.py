"""ProgressStream: blocking work in a thread whose progress the client reads as a stream of JSON."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar

from warmcell.core.errors import SandboxError
from warmcell.interfaces.docker.messages import Response, json_line, refusal_of
from warmcell.lifetime.threads import in_thread

T = TypeVar("T")
P = TypeVar("P")
#: Messages that wait for a slow client; the oldest are dropped.
_MAX_WAITING = 1000


class ClientLeft(Exception):
    """Raised in the working thread when its client is gone."""


class ProgressStream(Generic[P]):
    """Used once. A failure before the first progress has a status of its own; a later one is in the stream."""

    def __init__(self, render: Callable[[P], dict[str, Any]]) -> None:
        self._render = render
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MAX_WAITING)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._is_abandoned = False

    def report(self, progress: P) -> None:
        """From the working thread. Ends the work if the client is gone."""
        if self._is_abandoned:
            raise ClientLeft
        self._waiting.append(self._render(progress))
        self._loop.call_soon_threadsafe(self._changed.set)

    async def respond(self, work: Callable[[], T], describe: Callable[[T], list[dict[str, Any]]]) -> Response:
        """Starts the work. `describe` gives the messages at its end."""
        working = asyncio.ensure_future(self._work(work))
        working.add_done_callback(lambda _: self._changed.set())
        try:
            await self._changed.wait()
            if working.done() and not self._waiting:
                working.result()
        except SandboxError as error:
            raise refusal_of(error) from None
        except asyncio.CancelledError:
            await self._abandon(working)
            raise
        chunks = self._messages(working, describe)
        return Response(200, headers={"content-type": "application/json"}, chunks=chunks)

    async def _work(self, work: Callable[[], T]) -> T:
        return await in_thread(work, on_cancel=self._stop)

    def _stop(self) -> None:
        self._is_abandoned = True

    async def _messages(
        self, working: asyncio.Future[T], describe: Callable[[T], list[dict[str, Any]]]
    ) -> AsyncIterator[bytes]:
        try:
            is_over = False
            while not is_over:
                is_over = working.done()
                self._changed.clear()
                while self._waiting:
                    yield json_line(self._waiting.popleft())
                if not is_over and not working.done():
                    await self._changed.wait()
            for message in _last_messages(working, describe):
                yield json_line(message)
        finally:
            await self._abandon(working)

    async def _abandon(self, working: asyncio.Future[T]) -> None:
        self._stop()
        working.cancel()
        await asyncio.wait({working})
        if not working.cancelled():
            working.exception()  # seen above, or the client is gone


def _last_messages(working: asyncio.Future[T], describe: Callable[[T], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    error = working.exception()
    if error is None:
        return describe(working.result())
    if not isinstance(error, SandboxError):
        raise error
    return [{"errorDetail": {"message": str(error)}, "error": str(error)}]
