"""Token buckets: one for the whole policy, one per host. Thread-safe; the clock is a parameter."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from warmcell.net.rules.fetch_policy import RateLimit

MAX_HOSTS = 4096


class TokenBucket:
    """Holds up to `capacity` tokens and refills that many every `per_seconds`."""

    def __init__(self, capacity: int, per_seconds: float, now: float) -> None:
        self._capacity = float(capacity)
        self._gain = capacity / per_seconds
        self._tokens = self._capacity
        self._filled_at = now

    def has_token(self, now: float) -> bool:
        self._tokens = min(self._capacity, self._tokens + max(0.0, now - self._filled_at) * self._gain)
        self._filled_at = now
        return self._tokens >= 1.0

    def take(self) -> None:
        self._tokens -= 1.0


class RateLimiter:
    """Decides whether one more request may be sent now. Without a limit, always."""

    def __init__(self, limit: RateLimit | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._whole = TokenBucket(limit.requests, limit.per_seconds, clock()) if limit else None
        self._hosts: OrderedDict[str, TokenBucket] = OrderedDict()

    def admit(self, host: str) -> bool:
        if self._limit is None or self._whole is None:
            return True
        with self._lock:
            now = self._clock()
            buckets = [self._whole]
            if self._limit.per_domain is not None:
                buckets.append(self._bucket_of(host, self._limit.per_domain, now))
            # Check all before taking from any: a refused request must not use up the budget.
            if not all(bucket.has_token(now) for bucket in buckets):
                return False
            for bucket in buckets:
                bucket.take()
            return True

    def _bucket_of(self, host: str, capacity: int, now: float) -> TokenBucket:
        assert self._limit is not None
        bucket = self._hosts.get(host)
        if bucket is None:
            bucket = self._hosts[host] = TokenBucket(capacity, self._limit.per_seconds, now)
        self._hosts.move_to_end(host)
        # A guest can invent host names under a wildcard. The policy's own bucket still limits it after eviction.
        while len(self._hosts) > MAX_HOSTS:
            self._hosts.popitem(last=False)
        return bucket
