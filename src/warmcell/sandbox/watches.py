"""`sandbox.watch`: file events as an iterator, asynchronous and blocking."""

from __future__ import annotations

from typing import Self

from warmcell.core.light import Closing
from warmcell.lifetime.portal import portal
from warmcell.sandbox.interface import WatchDriver
from warmcell.sandbox.signatures import blocking
from warmcell.workspace.file_watch import FileEvent


class AsyncWatch:
    """An async iterator of `FileEvent`s, for one reader. It ends with `aclose` or the sandbox."""

    def __init__(self, driver: WatchDriver) -> None:
        self._driver = driver

    async def aclose(self) -> None:
        """Ends the iteration. May be called twice."""
        await self._driver.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FileEvent:
        event = await self._driver.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        await self._driver.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Watch(Closing):
    """`AsyncWatch` for blocking code: `for event in sandbox.watch(): ...`. Any thread may close it."""

    def __init__(self, watch: AsyncWatch) -> None:
        self._async = watch

    close = blocking(AsyncWatch.aclose)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FileEvent:
        event = portal.call(self._async._driver.next)
        if event is None:
            raise StopIteration
        return event
