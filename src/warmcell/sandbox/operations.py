"""What a sandbox has under way: every operation can be ended, and none outlives the thing that it works on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from warmcell.core.errors import InvalidRequest, SandboxDestroyed
from warmcell.lifetime.threads import running_loop

T = TypeVar("T")


class Operations:
    """Counts operations in and out. After `close` began, new ones are refused and running ones end, typed.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def check_open(self) -> None:
        if self.is_closed:
            raise SandboxDestroyed

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Carries out `work` as a task that `close` can end. Cancelling the caller cancels the work as always."""
        if self.is_closed:
            work.close()
            raise SandboxDestroyed
        try:
            task = running_loop().create_task(work)
        except InvalidRequest:
            work.close()
            raise
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self.is_closed and task.cancelled() and not (caller is not None and caller.cancelling()):
                raise SandboxDestroyed from None
            raise

    async def close(self) -> None:
        """Ends what is running and waits until it has cleaned up."""
        self.is_closed = True
        while self._running:
            for task in self._running:
                task.cancel()
            await asyncio.wait(set(self._running))
