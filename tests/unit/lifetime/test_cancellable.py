"""CancellableIterator and SharedClose: a cancelled caller ends neither the read nor the close."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator

import pytest
from tests.helpers import until_async

from warmcell.lifetime.cancellable import CancellableIterator, SharedClose


class Source:
    """Items that the test supplies."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[int] = asyncio.Queue()
        self.is_closed = False

    async def read(self) -> AsyncGenerator[int]:
        try:
            while (item := await self.items.get()) >= 0:
                yield item
            raise ValueError("the end")
        finally:
            await asyncio.sleep(0)
            self.is_closed = True


async def test_an_item_that_arrives_with_the_cancellation_is_not_lost() -> None:
    source = Source()
    items = CancellableIterator(source.read())
    for number in range(20):
        reader = asyncio.ensure_future(anext(items))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        source.items.put_nowait(number)
        for _ in range(number // 5):
            await asyncio.sleep(0)
        reader.cancel()
        try:
            assert await reader == number
        except asyncio.CancelledError:
            assert await anext(items) == number
    await items.aclose()
    await items.aclose()
    assert source.is_closed


async def test_the_error_of_the_generator_is_raised_and_ends_it() -> None:
    source = Source()
    items = CancellableIterator(source.read())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await anext(items)
    source.items.put_nowait(-1)
    with pytest.raises(ValueError, match="the end"):
        await anext(items)
    assert await anext(items, None) is None


async def test_an_iterator_that_was_dropped_ends_its_read() -> None:
    source = Source()
    items = CancellableIterator(source.read())
    reader = asyncio.ensure_future(anext(items))
    await asyncio.wait([reader], timeout=0.01)
    reader.cancel()
    await asyncio.wait([reader])
    del items, reader
    gc.collect()
    await until_async(lambda: source.is_closed)


async def test_a_close_is_shared_and_repeated_if_it_failed() -> None:
    calls, may_end = 0, asyncio.Event()

    async def close() -> None:
        nonlocal calls
        calls += 1
        await may_end.wait()
        if calls == 1:
            raise OSError("unreachable")

    closing = SharedClose(close)
    first = asyncio.ensure_future(closing.run())
    await asyncio.sleep(0)
    first.cancel()
    others = asyncio.gather(closing.run(), closing.run(), return_exceptions=True)
    await asyncio.sleep(0.01)
    assert not others.done()
    may_end.set()
    assert [type(outcome) for outcome in await others] == [OSError, OSError] and calls == 1
    await closing.run()
    await closing.run()
    assert calls == 2
