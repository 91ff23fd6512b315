"""BatchRuns: runs of batches on a node. A few run at a time, and others wait there, so that the node has work while
results and the next requests travel, many in one call: a call of Ray costs more than a run's own messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from warmcell.core.records import replace
from warmcell.core.types import ExecResult

#: How long a result waits for others.
_HOLD_SECONDS = 0.1


class BatchRuns:
    def __init__(self) -> None:
        self._places: asyncio.Semaphore | None = None
        self._waiting = self._at_once = 0
        #: Set when what goes out must not wait: it is not only results of batches, or the node has little left to do.
        self.has_urgent = asyncio.Event()

    async def run(self, execute: Callable[[], Awaitable[ExecResult]], at_once: int) -> ExecResult:
        """`at_once` follows from the node's processors: it is the same for all runs."""
        if self._places is None:
            self._places, self._at_once = asyncio.Semaphore(at_once), at_once
        waited = await self._wait_for_place(self._places)
        try:
            result = await execute()
        finally:
            self._places.release()
        return replace(result, queued=result.queued + waited)

    async def _wait_for_place(self, places: asyncio.Semaphore) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._waiting += 1
        try:
            await places.acquire()
        finally:
            self._waiting -= 1
            if self._waiting == self._at_once:
                self.has_urgent.set()
        return loop.time() - began

    async def hold_results(self) -> None:
        """Lets results of batches wait for others, while enough runs wait here to keep the node busy."""
        if self._waiting > self._at_once:
            with suppress(TimeoutError):
                async with asyncio.timeout(_HOLD_SECONDS):
                    await self.has_urgent.wait()
