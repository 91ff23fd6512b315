"""The fetches of one run: requested in supervisor threads, done on the sandbox's event loop, cancelled with the run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from warmcell.core.errors import FetchFailed


class RunFetches:
    """The supervisor's `Fetch`. Created and ended on the loop; called from other threads."""

    def __init__(self, fetch: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._fetch = fetch
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[bytes]] = set()
        self._is_over = False

    def __call__(self, request: bytes) -> bytes:
        return asyncio.run_coroutine_threadsafe(self._run(request), self._loop).result()

    async def _run(self, request: bytes) -> bytes:
        if self._is_over:  # requested just before the end
            raise FetchFailed("the run has ended")
        task = asyncio.ensure_future(self._fetch(request))
        self._tasks.add(task)
        try:
            return await task
        finally:
            self._tasks.discard(task)

    async def end(self) -> None:
        """Cancels the fetches and waits until all connections are closed."""
        self._is_over = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
