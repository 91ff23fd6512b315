"""File events of a remote sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from warmcell.interfaces.client.wire import record
from warmcell.workspace.watching import FileEvent

if TYPE_CHECKING:
    from warmcell.interfaces.client.connection import Connection


class AsyncRemoteWatch:
    """An async iterator of `FileEvent`s, for one reader; it ends with `aclose` or the sandbox."""

    def __init__(self, connection: Connection, path: str, params: Mapping[str, str]) -> None:
        self._connection, self._path, self._params = connection, path, params
        self._stack = AsyncExitStack()
        self._events: AsyncIterator[tuple[str, Any, str]] | None = None
        self._is_closed = False

    async def begin(self) -> None:
        """Returns when the server watches."""
        if self._events is None and not self._is_closed:
            stream = self._connection.events("GET", self._path, params=self._params)
            self._events = await self._stack.enter_async_context(stream)
            await anext(self._events)

    async def next(self) -> FileEvent | None:
        """The next one, when there is one; None when there will be none."""
        await self.begin()
        if self._is_closed or self._events is None:
            return None
        try:
            _, data, _ = await anext(self._events)
        except StopAsyncIteration:
            await self.aclose()
            return None
        made: FileEvent = record(FileEvent, data)
        return made

    async def aclose(self) -> None:
        """May be called twice."""
        self._is_closed = True
        await self._stack.aclose()

    def __aiter__(self) -> AsyncRemoteWatch:
        return self

    async def __anext__(self) -> FileEvent:
        event = await self.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> AsyncRemoteWatch:
        await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
