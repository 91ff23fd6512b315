"""A stream that loses no item, and a close that can be repeated, although their callers are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from warmcell.lifetime.threads import cancel_and_wait

T = TypeVar("T")
_END: Any = object()


class SharedClose:
    """Closes once for all callers, each of which returns after the end. If it failed, the next call tries again."""

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        self._close = close
        self._closing: asyncio.Future[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._closing is not None and not self._closing.done()

    async def run(self) -> None:
        """Cancelling the caller does not cancel the close."""
        if self._closing is None or _has_failed(self._closing):
            self._closing = asyncio.ensure_future(self._close())
            self._closing.add_done_callback(_has_failed)  # retrieves the exception if all callers were cancelled
        await asyncio.wait([self._closing])
        self._closing.result()


def _has_failed(task: asyncio.Future[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


class CancellableIterator(AsyncGenerator[T, None], Generic[T]):
    """An asynchronous generator for one reader. A reader that is cancelled, as by a timeout, ends neither the generator
    nor the read: the next `anext` gets the item.
    """

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._reading: asyncio.Task[T] | None = None
        self._is_closed = False
        self._closing = SharedClose(self._close)

    async def __anext__(self) -> T:
        if self._is_closed:
            raise StopAsyncIteration
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read(self._items))
            self._reading.add_done_callback(_has_failed)
        reading = self._reading
        await asyncio.wait([reading])
        if self._is_closed:
            raise StopAsyncIteration
        self._reading = None
        if (item := reading.result()) is _END:
            raise StopAsyncIteration
        return item

    @staticmethod
    async def _read(items: AsyncGenerator[T, None]) -> T:
        """Without a reference to the iterator, so that one that was dropped is finalized."""
        return await anext(items, _END)

    async def aclose(self) -> None:
        """A pending `anext` ends the iteration. May be called twice."""
        self._is_closed = True
        await self._closing.run()

    async def _close(self) -> None:
        if self._reading is not None:
            await cancel_and_wait(self._reading)
        await self._items.aclose()

    async def asend(self, value: None) -> T:
        return await self.__anext__()

    async def athrow(self, error: Any, value: object = None, trace: Any = None) -> T:
        await self.aclose()
        raise error

    def __del__(self) -> None:
        """Ends a read that no reader waits for any more. Runs in any thread."""
        reading = getattr(self, "_reading", None)
        if reading is not None and not reading.done():
            with suppress(RuntimeError):  # the loop was closed
                reading.get_loop().call_soon_threadsafe(reading.cancel)
