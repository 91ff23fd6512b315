"""Limits of each tenant: sandboxes, snapshots, WebSockets and requests at a time, and requests per second."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from warmcell.core.errors import SandboxError
from warmcell.core.types import MIB
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.lifetime.fair_semaphore import TooManyWaiting

#: What is counted.
SANDBOXES, SNAPSHOTS, SOCKETS = range(3)
#: The size of a bucket, in seconds of the tenant's rate: clients start with a burst and continue evenly.
BURST_SECONDS = 2.0
#: Extra concurrent requests per tenant for routes that end something: open streams cannot lock a tenant out.
RESERVED_FOR_DELETE = 4
#: Bytes of long results that a tenant's clients have not read yet: with more, nothing more is started for it.
MAX_UNREAD = 512 * MIB


class TenantQuota:
    """Counts objects of one kind by tenant, in one process. Whatever is taken or added is released once."""

    def __init__(self, kind: int = SANDBOXES) -> None:
        self._used: Counter[str] = Counter()

    def take(self, tenant_id: str, limit: int) -> bool:
        """Count one more and return True, unless the tenant has reached its limit."""
        if self._used[tenant_id] >= limit:
            return False
        self._used[tenant_id] += 1
        return True

    def add(self, tenant_id: str) -> None:
        """Count one more, whatever the limit: it exists already."""
        self._used[tenant_id] += 1

    def release(self, tenant_id: str) -> None:
        self._used[tenant_id] -= 1

    def count(self, tenant_id: str) -> int:
        return self._used[tenant_id]

    def total(self) -> int:
        return self._used.total()


class RateLimiter:
    """A token bucket for each tenant. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: By tenant: the level of the bucket, and when it was computed.
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, tenant: Tenant) -> None:
        """Raises `HttpError` 429 with Retry-After if the bucket is empty."""
        if not tenant.rate:
            return
        now, capacity = self._clock(), max(1.0, tenant.rate * BURST_SECONDS)
        level, then = self._buckets.get(tenant.id, (capacity, now))
        level = min(capacity, level + (now - then) * tenant.rate)
        if level < 1:
            self._buckets[tenant.id] = level, now
            pause = str(math.ceil((1 - level) / tenant.rate))
            message = f"rate limit exceeded: {tenant.rate} requests per second"
            raise HttpError(429, message, headers={"Retry-After": pause})
        self._buckets[tenant.id] = level - 1, now


class UnreadResults(TooManyWaiting):
    """The results of earlier runs of the tenant are in memory until its clients read them."""

    def __init__(self) -> None:
        message = f"{MAX_UNREAD >> 20} MiB of results of this token are not read yet"
        SandboxError.__init__(self, message, hint="read the responses of earlier requests, or close them")
        self.waited = 0.0


class ConcurrencyLimiter:
    """Count the requests of each tenant until their responses are sent, up to `tenant.connections`.

    Also counts the bytes of long results: many runs, one after the other, could leave one each to be read.
    """

    def __init__(self) -> None:
        self._active = TenantQuota()
        self._unread: Counter[str] = Counter()

    def enter(self, tenant: Tenant, *, ends_something: bool = False) -> None:
        if not self._active.take(tenant.id, tenant.connections + RESERVED_FOR_DELETE * ends_something):
            message = f"this token already has {tenant.connections} requests in progress"
            raise HttpError(429, message, headers={"Retry-After": "1"})

    def leave(self, tenant: Tenant) -> None:
        self._active.release(tenant.id)

    @contextmanager
    def count_unread(self, tenant: Tenant, size: int) -> Iterator[None]:
        """Count so many bytes while the block sends them."""
        self._unread[tenant.id] += size
        try:
            yield
        finally:
            self._unread[tenant.id] -= size

    def check_unread(self, tenant: Tenant) -> None:
        """Raises `UnreadResults`. Called when a run has its slot: the results before it are counted by then."""
        if self._unread[tenant.id] > MAX_UNREAD:
            raise UnreadResults


class CountedResponse:
    """A response that calls `on_sent` after its last byte, or when its client disconnects."""

    def __init__(self, response: Any, on_sent: Callable[[], None]) -> None:
        self._response, self._on_sent = response, on_sent

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._response(scope, receive, send)
        finally:
            self._on_sent()
