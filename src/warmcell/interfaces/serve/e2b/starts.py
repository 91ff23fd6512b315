"""Starts: programs start and sandboxes are handed out a few at a time, in the order of the requests.

Fifty programs that start at once and share the processors all end last; one after another, half of them end in half the
time, and the last no later. The first program of a new sandbox comes before the sandboxes of others.
Tenants take turns.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from warmcell.interfaces.serve.service import Service
from warmcell.lifetime.fair_semaphore import FairSemaphore

#: How long a start may hold its slot: a guest can make its agent answer late, or never.
_STARTING_SECONDS = 0.1
#: How long a program that has started keeps its slot: short ones end within it.
_HELD_SECONDS = 0.01
#: How long a new sandbox keeps its slot without a first program.
_FIRST_SECONDS = 0.01
#: By processor: new sandboxes that wait for their first program.
_NEW_AT_ONCE = 2
_MOST_WAITING, _PATIENCE = 1 << 16, 60.0


class Starts:
    """One, in `service.state`. Belongs to the server's event loop. A tenant has one slot per processor for programs and
    two for new sandboxes; one of each is left to others.
    """

    def __init__(self) -> None:
        self._share = len(os.sched_getaffinity(0))
        self._programs = FairSemaphore(self._share + 1, _MOST_WAITING)
        self._sandboxes = FairSemaphore(_NEW_AT_ONCE * self._share + 1, _MOST_WAITING)

    @property
    def is_idle(self) -> bool:
        return self._programs.is_idle and self._sandboxes.is_idle

    async def run_slot(self, tenant_id: str) -> QueueSlot:
        await self._programs.acquire_async(_PATIENCE, tenant_id, self._share)
        return QueueSlot(lambda: self._programs.release(tenant_id), _STARTING_SECONDS)

    async def new_sandbox(self, tenant_id: str) -> QueueSlot:
        """The slot of a new sandbox, to be ended when its first program has started."""
        await self._sandboxes.acquire_async(_PATIENCE, tenant_id, _NEW_AT_ONCE * self._share)
        return QueueSlot(lambda: self._sandboxes.release(tenant_id), _FIRST_SECONDS)


class QueueSlot:
    """Ends by itself after some time, or with `end`, which may be called twice."""

    def __init__(self, leave: Callable[[], None], seconds: float) -> None:
        self._leave: Callable[[], None] | None = leave
        self._timer = asyncio.get_running_loop().call_later(seconds, self.end)

    def end_soon(self) -> None:
        """The program has started: keep the slot only for a moment longer."""
        self._timer.cancel()
        if self._leave is not None:
            self._timer = asyncio.get_running_loop().call_later(_HELD_SECONDS, self.end)

    def end(self) -> None:
        leave, self._leave = self._leave, None
        self._timer.cancel()
        if leave is not None:
            leave()


def starts_of(service: Service) -> Starts:
    return service.state.get(Starts, Starts)
