"""The fetches of one run: asked for in threads of the supervisor, done on the sandbox's loop, ended with the run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from warmcell.core.errors import FetchFailed


class RunFetches:
    """What the supervisor calls to fetch. Made and ended on the loop; called from any other thread."""

    def __init__(self, fetch: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._fetch = fetch
        self._loop = asyncio.get_running_loop()
        self._under_way: set[asyncio.Task[bytes]] = set()
        self._is_over = False

    def __call__(self, request: bytes) -> bytes:
        return asyncio.run_coroutine_threadsafe(self._carry_out(request), self._loop).result()

    async def _carry_out(self, request: bytes) -> bytes:
        if self._is_over:  # asked for when the run was about to end
            raise FetchFailed("the run has ended")
        task = asyncio.ensure_future(self._fetch(request))
        self._under_way.add(task)
        try:
            return await task
        finally:
            self._under_way.discard(task)

    async def end(self) -> None:
        """Returns when no connection of the run is left."""
        self._is_over = True
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(set(self._under_way))
