"""Limits on requests (token buckets) and on connections and lookups (slots). Thread-safe."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import cache

from warmcell.lifetime.ownership import own
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
    """Decides whether one more request may be sent now: by a bucket for the policy and one per host."""

    def __init__(self, limit: RateLimit | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
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
        # A guest can invent host names under a wildcard. After an eviction the policy's bucket still limits it.
        while len(self._hosts) > MAX_HOSTS:
            self._hosts.popitem(last=False)
        return bucket


DESCRIPTORS_EACH = 2
#: Guest connections may use 1/_SHARE of the program's descriptors.
_SHARE = 4
_FEWEST, _MOST = 8, 1024
_ALWAYS = 2


class FairSlots:
    """A fixed number of slots that all guests of this program share. A forked child starts with all slots free.

    Guest connections use the host program's descriptors, so there is one total per program, derived from RLIMIT_NOFILE.
    A guest gets another slot only while more slots are free than it holds: a single guest gets half of them, two guests
    a third each. Two slots are always granted; the number of runs is bounded elsewhere.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.abandon()
        own(self)

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self.taken = 0

    def take(self, held: int) -> bool:
        """Take a slot for a guest that holds `held` slots; False if it has used its share."""
        with self._lock:
            if held >= _ALWAYS and held >= self.most - self.taken:
                return False
            self.taken += 1
            return True

    def release(self) -> None:
        with self._lock:
            self.taken = max(0, self.taken - 1)


@cache
def connection_slots() -> FairSlots:
    """The program's connection slots, sized by RLIMIT_NOFILE at first use."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return FairSlots(_MOST)
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    usable = _MOST if soft == resource.RLIM_INFINITY else soft // _SHARE // DESCRIPTORS_EACH
    return FairSlots(min(max(usable, _FEWEST), _MOST))
