"""Which connection is closed for a new one, and that finding it does not take longer with their number."""

from __future__ import annotations

import sys

import pytest

from warmcell.interfaces.serve.http_protocol import ConnectionShares


def fill(shares: ConnectionShares, names: str, address: str) -> list[object]:
    return [shares.add(name, address, number + 1) for number, name in enumerate(names)]


def test_the_longest_idle_one_of_a_crowded_address_is_closed() -> None:
    shares = ConnectionShares(4, "")
    assert fill(shares, "abc", "192.0.2.1") == [None] * 3
    shares.mark_busy("a")
    shares.mark_busy("b")
    shares.mark_idle("b")
    assert shares.add("d", "192.0.2.1", 4) == "c"
    shares.remove("c")
    shares.mark_busy("b")
    shares.mark_busy("d")
    assert shares.add("e", "192.0.2.1", 4) == "e"  # none is idle


def test_others_are_closed_only_when_there_are_too_many_in_all() -> None:
    shares = ConnectionShares(4, "")
    fill(shares, "abc", "192.0.2.1")
    assert shares.add("x", "192.0.2.2", 4) is None
    assert shares.add("y", "192.0.2.2", 5) == "a"


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1", ""], ids=["proxy", "proxy over IPv6", "unix"])
def test_a_trusted_proxy_has_no_share(address: str) -> None:
    shares = ConnectionShares(4, "192.0.2.0/24,2001:db8::/64")
    assert fill(shares, "abcd", address) == [None] * 4


def test_a_network_of_ipv6_is_one_client() -> None:
    shares = ConnectionShares(4, "")
    addresses = [f"2001:db8::{number}" for number in range(4)]
    assert [shares.add(each, each, 1) for each in addresses] == [None, None, None, addresses[0]]


def test_what_was_removed_counts_no_longer() -> None:
    shares = ConnectionShares(4, "")
    for _ in range(10):
        fill(shares, "abc", "192.0.2.1")
        for name in "abca":
            shares.remove(name)
            shares.mark_idle(name)
    assert not shares._networks and not shares._counts and not shares._idle and not shares._idle_of


@pytest.mark.attack("S3-15")
def test_a_flood_costs_the_same_for_each_connection() -> None:
    shares, calls = ConnectionShares(1000, ""), 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    costs = []
    for number in range(3000):
        calls = 0
        sys.setprofile(count)
        closed = shares.add(number, "192.0.2.1", number)
        sys.setprofile(None)
        if closed is not None:
            shares.remove(closed)
        costs.append(calls)
    assert sorted(costs)[2900] < 50, max(costs)  # a garbage collection may call finalizers of other tests
