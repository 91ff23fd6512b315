"""Operations: the calls of a sandbox that are in progress. `close` ends them before it removes what they use."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from warmcell.core.errors import InvalidRequest, SandboxDestroyed
from warmcell.lifetime.threads import running_loop

T = TypeVar("T")


class _Operation:
    """The part of a caller's task that `close` may cancel."""

    __slots__ = ("cancellations", "ended", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        #: How often others had cancelled the task before.
        self.cancellations = task.cancelling()
        #: Set when `close` waits for the end.
        self.ended: asyncio.Future[None] | None = None

    def cancel(self) -> asyncio.Future[None]:
        """Cancels it. Returns a future that is done when its clean-up has ended."""
        if self.ended is None:
            self.ended = asyncio.get_running_loop().create_future()
            self.task.cancel()
        return self.ended

    def end(self) -> bool:
        """Returns whether `close` cancelled it, and only `close`."""
        if self.ended is None:
            return False
        if not self.ended.done():
            self.ended.set_result(None)
        return self.task.uncancel() <= self.cancellations


class Operations:
    """Once closed, new operations are refused and running ones end with `SandboxDestroyed`. For one event loop.

    An operation runs in the task of its caller. A task of its own could complete in the moment in which the caller is
    cancelled, and what it made would then have no owner.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self._running: set[_Operation] = set()

    @property
    def has_others(self) -> bool:
        """Whether operations other than the one that asks are in progress."""
        own = asyncio.current_task()
        return any(operation.task is not own for operation in self._running)

    def check_open(self) -> None:
        if self.is_closed:
            raise SandboxDestroyed

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` so that `close` can cancel it."""
        if self.is_closed:
            work.close()
            raise SandboxDestroyed
        try:
            running_loop()
        except InvalidRequest:
            work.close()
            raise
        task = asyncio.current_task()
        assert task is not None
        operation = _Operation(task)
        self._running.add(operation)
        try:
            result = await work
        except asyncio.CancelledError:
            self._running.discard(operation)
            if operation.end():
                raise SandboxDestroyed from None
            raise
        except BaseException:
            self._running.discard(operation)
            operation.end()
            raise
        self._running.discard(operation)
        operation.end()
        return result

    async def close(self) -> None:
        """Cancels what is running and waits for its clean-up."""
        self.is_closed = True
        while self._running:
            await asyncio.wait([operation.cancel() for operation in self._running])
