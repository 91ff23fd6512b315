"""Programs are started a few at a time, in the order in which they were asked for, and so are sandboxes given.

Fifty that begin at once and share the processors all end last; one after another, half of them have ended in half the
time, and the last no later. Whoever has just got a sandbox wants its first program next, and that comes before others'
sandboxes. Tenants take turns.
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
#: Who has asked for no program so long after the sandbox may never do so.
_FIRST_SECONDS = 0.01
#: For each processor: sandboxes that were given and wait for their first program.
_NEW_AT_ONCE = 2
_MOST_WAITING, _PATIENCE = 1 << 16, 60.0


class Starts:
    """One, in `service.extras`. Belongs to the server's event loop. A tenant has one place for each processor, and
    leaves one to others; and two for sandboxes that nothing has run in yet.
    """

    def __init__(self) -> None:
        self._share = len(os.sched_getaffinity(0))
        self._programs = TenantQueue(self._share + 1, _MOST_WAITING)
        self._sandboxes = TenantQueue(_NEW_AT_ONCE * self._share + 1, _MOST_WAITING)

    @property
    def is_idle(self) -> bool:
        return self._programs.is_idle and self._sandboxes.is_idle

    async def turn(self, tenant_id: str) -> Turn:
        await self._programs.enter(tenant_id, self._share, _PATIENCE)
        return Turn(lambda: self._programs.leave(tenant_id), _STARTING_SECONDS)

    async def new_sandbox(self, tenant_id: str) -> Turn:
        """Ends when its first program has started."""
        await self._sandboxes.enter(tenant_id, _NEW_AT_ONCE * self._share, _PATIENCE)
        return Turn(lambda: self._sandboxes.leave(tenant_id), _FIRST_SECONDS)


class Turn:
    """A place among those who start; it ends by itself, or with `end`, which may be called twice."""

    def __init__(self, leave: Callable[[], None], seconds: float) -> None:
        self._leave: Callable[[], None] | None = leave
        self._timer = asyncio.get_running_loop().call_later(seconds, self.end)

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
