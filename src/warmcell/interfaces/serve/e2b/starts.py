"""Programs are started a few at a time, in the order in which they were asked for.

Fifty that begin at once and share the processors all end last; one after another, half of them have ended in half the
time, and the last no later. Tenants take turns.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from warmcell.interfaces.serve.service import Service
from warmcell.lifetime.tenant_queue import TenantQueue

#: Who has not been started by then is waited for no longer: a guest can have its agent answer late, or never.
_STARTING_SECONDS = 0.1
#: A program that has not ended so long after it was started is none that others should wait for.
_HELD_SECONDS = 0.01
_MOST_WAITING, _PATIENCE = 1 << 16, 60.0


class Starts:
    """One, in `service.extras`. Belongs to the server's event loop. A tenant has one place for each processor, and
    leaves one to others.
    """

    def __init__(self) -> None:
        self._share = len(os.sched_getaffinity(0))
        self._queue = TenantQueue(self._share + 1, _MOST_WAITING)

    @property
    def is_idle(self) -> bool:
        return self._queue.is_idle

    async def turn(self, tenant_id: str) -> Turn:
        await self._queue.enter(tenant_id, self._share, _PATIENCE)
        return Turn(lambda: self._queue.leave(tenant_id))


class Turn:
    """A place among those who start; it ends by itself, or with `end`, which may be called twice."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave
        self._timer = asyncio.get_running_loop().call_later(_STARTING_SECONDS, self.end)

    def end_soon(self) -> None:
        """It was started: from here on it is waited for a moment only."""
        self._timer.cancel()
        if self._leave is not None:
            self._timer = asyncio.get_running_loop().call_later(_HELD_SECONDS, self.end)

    def end(self) -> None:
        leave, self._leave = self._leave, None
        self._timer.cancel()
        if leave is not None:
            leave()


def starts_of(service: Service) -> Starts:
    found: Starts | None = service.extras.get("e2b starts")
    if found is None:
        found = service.extras["e2b starts"] = Starts()
    return found
