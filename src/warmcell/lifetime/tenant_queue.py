"""Places that several tenants share: each has its own line, and the lines take turns."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from warmcell.core.errors import BackendBusy
from warmcell.lifetime.threads import running_loop


class TooManyWaiting(BackendBusy):
    """The tenant's own line is full; others may still be served."""


class TenantQueue:
    """`most` places, and room for `longest` who wait. Belongs to one event loop.

    A place that becomes free goes to the tenant whose turn it is, so that ten thousand requests of one delay another's
    single one by one run. Nobody holds more places than their `share`, and a tenant's line may take half of the room.
    """

    def __init__(self, most: int, longest: int) -> None:
        self._most, self._longest = most, longest
        self._taken: Counter[str] = Counter()
        self._shares: dict[str, int] = {}
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, self._lines.values()))

    @property
    def is_idle(self) -> bool:
        return not self._taken and not self._lines

    @asynccontextmanager
    async def place(self, tenant: str, share: int, timeout: float) -> AsyncIterator[None]:
        """Raises `BackendBusy` after `timeout` seconds, or at once where there is no room to wait."""
        await self.enter(tenant, share, timeout)
        try:
            yield
        finally:
            self.leave(tenant)

    async def enter(self, tenant: str, share: int, timeout: float) -> None:
        """`place` for who leaves elsewhere: once for each time that this has returned."""
        self._shares[tenant] = share
        if tenant in self._lines or not self._has_place(tenant):
            await self._wait(tenant, timeout)
        else:
            self._taken[tenant] += 1

    def _has_place(self, tenant: str) -> bool:
        return self._taken.total() < self._most and self._taken[tenant] < self._shares[tenant]

    async def _wait(self, tenant: str, timeout: float) -> None:
        if self.waiting >= self._longest:
            raise BackendBusy(0, hint="come again later")
        if len(self._lines.get(tenant, ())) >= max(1, self._longest // 2):
            raise TooManyWaiting(0, hint="ask for less at once")
        turn: asyncio.Future[None] = running_loop().create_future()
        self._lines.setdefault(tenant, deque()).append(turn)
        try:
            await asyncio.wait([turn], timeout=timeout)
        except BaseException:
            self._give_up(tenant, turn)
            raise
        if not turn.done():
            self._give_up(tenant, turn)
            raise BackendBusy(timeout, hint="come again later")

    def _give_up(self, tenant: str, turn: asyncio.Future[None]) -> None:
        if turn.done():  # it came in the same moment
            self.leave(tenant)
            return
        line = self._lines[tenant]
        line.remove(turn)
        if not line:
            del self._lines[tenant]

    def leave(self, tenant: str) -> None:
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]
        self._serve()

    def _serve(self) -> None:
        """Gives every free place away, one tenant after the other; who was served goes to the end."""
        while (tenant := next(filter(self._has_place, self._lines), None)) is not None:
            line = self._lines.pop(tenant)
            turn = line.popleft()
            if line:
                self._lines[tenant] = line
            self._taken[tenant] += 1
            turn.set_result(None)
