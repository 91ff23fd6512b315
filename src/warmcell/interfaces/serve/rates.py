"""How much a tenant may ask: requests in a second, and answers under way at a time. Pure but for the clock given."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from warmcell.interfaces.serve.exchange import Refused
from warmcell.interfaces.serve.tokens import Tenant

#: A bucket holds what comes in so many seconds: clients begin with many at once and then go on evenly.
BURST_SECONDS = 2.0


class Rates:
    """A bucket for each tenant, which fills as time goes by. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: By tenant: how much was in it, and when.
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, tenant: Tenant) -> None:
        """`Refused` with 429, and when to come again, where the bucket is empty."""
        if not tenant.rate:
            return
        now, full = self._clock(), max(1.0, tenant.rate * BURST_SECONDS)
        held, then = self._buckets.get(tenant.id, (full, now))
        held = min(full, held + (now - then) * tenant.rate)
        if held < 1:
            self._buckets[tenant.id] = held, now
            pause = str(math.ceil((1 - held) / tenant.rate))
            raise Refused(429, f"this token has {tenant.rate} requests in a second", headers={"Retry-After": pause})
        self._buckets[tenant.id] = held - 1, now


#: Of each tenant, beyond its own: whoever has filled those with streams can still end what they come from.
PLACES_FOR_ENDING = 4


class AnswersUnderWay:
    """So many of each tenant at a time: who opens a thousand streams takes no place from others."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def enter(self, tenant: Tenant, *, ends_something: bool = False) -> None:
        if self._taken[tenant.id] >= tenant.connections + PLACES_FOR_ENDING * ends_something:
            said = f"this token has {tenant.connections} requests under way already"
            raise Refused(429, said, headers={"Retry-After": "1"})
        self._taken[tenant.id] += 1

    def leave(self, tenant: Tenant) -> None:
        self._taken[tenant.id] -= 1
        if not self._taken[tenant.id]:
            del self._taken[tenant.id]


class CountedAnswer:
    """A response that is under way until its last byte was sent or its client has gone."""

    def __init__(self, response: Any, on_sent: Callable[[], None]) -> None:
        self._response, self._on_sent = response, on_sent

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._response(scope, receive, send)
        finally:
            self._on_sent()
