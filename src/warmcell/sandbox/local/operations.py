"""Operations: the calls of a sandbox that are in progress. `close` ends them before it removes what they use."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from warmcell.core.errors import InvalidRequest, SandboxDestroyed
from warmcell.lifetime.threads import running_loop

T = TypeVar("T")


class Operations:
    """Once closed, new operations are refused and running ones end with `SandboxDestroyed`. For one event loop."""

    def __init__(self) -> None:
        self.is_closed = False
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def has_others(self) -> bool:
        """Whether operations other than the one that asks are in progress."""
        return bool(self._running - {asyncio.current_task()})

    def check_open(self) -> None:
        if self.is_closed:
            raise SandboxDestroyed

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` as a task that `close` can cancel. Cancelling the caller cancels it too."""
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
        """Cancels what is running and waits for its clean-up."""
        self.is_closed = True
        while self._running:
            for task in self._running:
                task.cancel()
            await asyncio.wait(set(self._running))
