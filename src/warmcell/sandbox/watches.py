"""`sandbox.watch`: file events as an iterator, async and blocking."""

from __future__ import annotations

import asyncio
from collections import deque

from warmcell.lifetime.portal import portal
from warmcell.lifetime.threads import running_loop
from warmcell.workspace.watching import FileEvent, FileWatch


def _settle(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class AsyncWatch:
    """An async iterator of `FileEvent`s, for one reader. What nobody reads waits in the kernel, which keeps so many."""

    def __init__(self, watch: FileWatch) -> None:
        self._watch = watch
        self._told: deque[FileEvent] = deque()
        self._waiting: asyncio.Future[None] | None = None

    async def next(self) -> FileEvent | None:
        """The next one, when there is one; None when there will be none."""
        while not self._told and not self._watch.is_closed:
            self._told.extend(self._watch.events())
            if not self._told and not self._watch.is_closed:
                await self._something()
        return self._told.popleft() if self._told else None

    async def _something(self) -> None:
        loop, descriptor = running_loop(), self._watch.descriptor
        self._waiting = waiting = loop.create_future()
        loop.add_reader(descriptor, _settle, waiting)
        try:
            await waiting
        finally:
            self._waiting = None
            if not self._watch.is_closed:
                loop.remove_reader(descriptor)

    async def aclose(self) -> None:
        """Whoever waits for the next one is told that there is none. May be called twice."""
        if self._watch.is_closed:
            return
        if self._waiting is not None:
            running_loop().remove_reader(self._watch.descriptor)
            _settle(self._waiting)
        self._watch.close()

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> FileEvent:
        event = await self.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> AsyncWatch:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Watch:
    """The same for blocking code: `for event in sandbox.watch(): ...`. Any thread may close it."""

    def __init__(self, watch: AsyncWatch) -> None:
        self._watch = watch

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> FileEvent:
        event = portal.call(self._watch.next)
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        portal.call(self._watch.aclose)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
