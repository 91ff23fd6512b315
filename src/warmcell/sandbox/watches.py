"""`sandbox.watch`: file events as an iterator, async and blocking."""

from __future__ import annotations

import asyncio
import weakref
from contextlib import suppress

from warmcell.lifetime.portal import portal
from warmcell.lifetime.threads import running_loop
from warmcell.workspace.watching import FileEvent, FileWatch


class AsyncWatch:
    """An async iterator of `FileEvent`s, for one reader.

    What nobody reads waits in the kernel, which keeps so many; where new directories have to be watched too, the event
    loop gathers it as it comes, and keeps so many.
    """

    def __init__(self, watch: FileWatch) -> None:
        self._watch = watch
        self._waiting: asyncio.Future[None] | None = None
        #: The loop that gathers, while one does.
        self._loop: asyncio.AbstractEventLoop | None = None
        if watch.is_recursive:
            with suppress(RuntimeError):  # there is no loop yet: the first that reads has one
                self._listen(asyncio.get_running_loop())

    async def next(self) -> FileEvent | None:
        """The next one, when there is one; None when there will be none."""
        while (event := self._watch.next_event()) is None and not self._watch.is_closed:
            self._gather()
            if self._watch.has_events or self._watch.is_closed:
                continue
            self._listen(running_loop())
            self._waiting = running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return event

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is None or self._loop.is_closed():
            self._loop = loop
            # Whom nobody has any more is not kept by the loop.
            loop.add_reader(self._watch.descriptor, _hear, weakref.ref(self))

    def _pause(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._watch.descriptor)

    def _gather(self) -> None:
        self._watch.gather()
        if self._watch.is_over:
            self._end()

    def _hear(self) -> None:
        self._gather()
        if self._watch.is_full or not self._watch.is_recursive:
            self._pause()  # until all was read: a guest must not keep this loop busy for nobody
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _end(self) -> None:
        self._pause()
        self._watch.close()

    async def aclose(self) -> None:
        """Whoever waits for the next one is told that there is none. May be called twice."""
        if not self._watch.is_closed:
            self._end()
        self._watch.forget()
        self._wake()

    def __del__(self) -> None:
        """In whatever thread: the loop has to let go of the descriptor before that is closed."""
        if self._loop is not None and not self._watch.is_closed:
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(_let_go, self._loop, self._watch)

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


def _hear(watch: weakref.ref[AsyncWatch]) -> None:
    known = watch()
    if known is not None:
        known._hear()


def _let_go(loop: asyncio.AbstractEventLoop, watch: FileWatch) -> None:
    loop.remove_reader(watch.descriptor)
    watch.close()


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
