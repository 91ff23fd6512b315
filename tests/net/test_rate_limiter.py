"""Token buckets with a clock that the test moves."""

from __future__ import annotations

import pytest

from warmcell.core.errors import InvalidRequest
from warmcell.net.connect.limits import MAX_HOSTS, RateLimiter
from warmcell.net.rules.fetch_policy import FetchPolicy, RateLimit


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_a_limit_everything_passes() -> None:
    assert all(RateLimiter(None).admit("a") for _ in range(1000))


def test_a_bucket_empties_and_fills_again() -> None:
    clock = Clock()
    limiter = RateLimiter(RateLimit(3, per_seconds=3), clock)
    assert [limiter.admit("a") for _ in range(4)] == [True, True, True, False]
    clock.now = 1.0
    assert [limiter.admit("b") for _ in range(2)] == [True, False]
    clock.now = 1000.0
    assert [limiter.admit("a") for _ in range(4)] == [True, True, True, False]


def test_each_host_has_its_own_share_and_a_refusal_costs_nothing() -> None:
    clock = Clock()
    limiter = RateLimiter(RateLimit(4, per_seconds=60, per_domain=2), clock)
    assert [limiter.admit("a") for _ in range(5)] == [True, True, False, False, False]
    assert [limiter.admit("b") for _ in range(3)] == [True, True, False]
    assert not limiter.admit("c")


def test_invented_hosts_do_not_fill_the_memory() -> None:
    limiter = RateLimiter(RateLimit(10**6, per_domain=5), Clock())
    for number in range(MAX_HOSTS + 500):
        limiter.admit(f"h{number}")
    assert len(limiter._hosts) == MAX_HOSTS


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    clock = Clock()
    clock.now = 100.0
    limiter = RateLimiter(RateLimit(1, per_seconds=1), clock)
    assert limiter.admit("a")
    clock.now = 0.0
    assert not limiter.admit("a")


def test_the_ways_to_write_it() -> None:
    assert FetchPolicy(rate_limit=10).rate_limit == RateLimit(10, 60.0)  # type: ignore[arg-type]
    for bad in (0, -1, True, "10", 1.5):
        with pytest.raises(InvalidRequest):
            FetchPolicy(rate_limit=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        RateLimit(1, per_seconds=0)
