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
_HOLD_SECONDS = 0.2


class _Line:
    """Runs of which as many run at a time."""

    def __init__(self, at_once: int) -> None:
        self.at_once, self.places = at_once, asyncio.Semaphore(at_once)
        self.waiting = self.running = 0

    @property
    def has_enough(self) -> bool:
        """Whether the node stays busy with it for a while."""
        return self.waiting > self.at_once


class BatchRuns:
    def __init__(self) -> None:
        #: By how many run at a time.
        self._lines: dict[int, _Line] = {}
        #: Set when what goes out must not wait: it is not only results of batches, or the node has little left to do.
        self.has_urgent = asyncio.Event()

    async def run(self, execute: Callable[[], Awaitable[ExecResult]], at_once: int) -> ExecResult:
        """`at_once` follows from the node's processors and the kind of the batch."""
        line = self._lines.get(at_once)
        if line is None:
            line = self._lines[at_once] = _Line(at_once)
        waited = await self._wait_for_place(line)
        line.running += 1
        try:
            result = await execute()
        finally:
            line.running -= 1
            line.places.release()
        return replace(result, queued=result.queued + waited)

    async def _wait_for_place(self, line: _Line) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        line.waiting += 1
        try:
            await line.places.acquire()
        finally:
            line.waiting -= 1
            if line.waiting == line.at_once:
                self.has_urgent.set()
        return loop.time() - began

    async def hold_results(self) -> None:
        """Lets results of batches wait for others, while enough runs wait here to keep the node busy."""
        active = [line for line in self._lines.values() if line.waiting or line.running]
        if active and all(line.has_enough for line in active):
            with suppress(TimeoutError):
                async with asyncio.timeout(_HOLD_SECONDS):
                    await self.has_urgent.wait()
