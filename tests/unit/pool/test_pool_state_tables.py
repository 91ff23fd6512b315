"""The pool's numbers, step by step: the whole state after each thing that can happen to it."""

from __future__ import annotations

from typing import Any

import pytest

from warmcell.pool.state import IDLE_SECONDS, KindDemand, PoolState


def state(smallest: int = 1, largest: int = 4, total: int = 8, **demands: KindDemand) -> PoolState:
    return PoolState(smallest, largest, total, dict(demands))


def test_a_new_pool_and_a_new_shelf() -> None:
    assert PoolState(1, 4, 8) == PoolState(1, 4, 8, {})
    assert KindDemand() == KindDemand(ready=0, making=0, target=0, last_used=0.0)
    assert IDLE_SECONDS == 30.0


@pytest.mark.parametrize(
    ("before", "is_hit", "after"),
    [
        (state(), False, state(a=KindDemand(target=2, last_used=7.0))),
        (state(smallest=0), False, state(smallest=0, a=KindDemand(target=1, last_used=7.0))),
        (state(smallest=3), False, state(smallest=3, a=KindDemand(target=4, last_used=7.0))),
        (state(smallest=3, largest=0), False, state(smallest=3, largest=0, a=KindDemand(last_used=7.0))),
        (state(a=KindDemand(ready=1, target=3)), True, state(a=KindDemand(target=3, last_used=7.0))),
        (state(a=KindDemand(ready=2, making=1, target=3)), True, state(a=KindDemand(1, 1, 3, 7.0))),
        (state(a=KindDemand(making=1, target=1)), False, state(a=KindDemand(0, 1, 2, 7.0))),
        (state(a=KindDemand(target=3)), False, state(a=KindDemand(target=4, last_used=7.0))),
        (state(a=KindDemand()), False, state(a=KindDemand(target=1, last_used=7.0))),
    ],
)
def test_lease(before: PoolState, is_hit: bool, after: PoolState) -> None:
    assert (before.lease("a", 7.0), before) == (is_hit, after)


def test_who_is_used_last_stands_last() -> None:
    pool = state(a=KindDemand(target=1), b=KindDemand(target=1))
    pool.lease("a", 1.0)
    assert list(pool.demands) == ["b", "a"]


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        (state(), [], state()),
        (state(a=KindDemand(target=2)), ["a", "a"], state(a=KindDemand(0, 2, 2))),
        (state(a=KindDemand(1, 1, 3)), ["a"], state(a=KindDemand(1, 2, 3))),
        (state(a=KindDemand(1, 1, 2)), [], state(a=KindDemand(1, 1, 2))),
        (state(a=KindDemand(3, 0, 2)), [], state(a=KindDemand(3, 0, 2))),
        (
            state(a=KindDemand(target=2), b=KindDemand(target=1)),
            ["b", "a", "a"],
            state(a=KindDemand(0, 2, 2), b=KindDemand(0, 1, 1)),
        ),
        (
            state(total=3, a=KindDemand(target=4), b=KindDemand(target=4)),
            ["b", "b", "a"],
            state(total=3, a=KindDemand(0, 1, 4), b=KindDemand(0, 2, 4)),
        ),
        (
            state(total=3, a=KindDemand(3, 0, 4), b=KindDemand(target=4)),
            [],
            state(total=3, a=KindDemand(3, 0, 4), b=KindDemand(target=4)),
        ),
        (
            state(total=3, a=KindDemand(1, 1, 4), b=KindDemand(target=4)),
            ["b"],
            state(total=3, a=KindDemand(1, 1, 4), b=KindDemand(0, 1, 4)),
        ),
        (
            state(total=4, a=KindDemand(3, 0, 4), b=KindDemand(target=4), c=KindDemand(target=4)),
            ["c"],
            state(total=4, a=KindDemand(3, 0, 4), b=KindDemand(target=4), c=KindDemand(0, 1, 4)),
        ),
        (state(total=0, a=KindDemand(target=1)), [], state(total=0, a=KindDemand(target=1))),
        (
            state(total=1, a=KindDemand(target=1), b=KindDemand()),
            ["a"],
            state(total=1, a=KindDemand(0, 1, 1), b=KindDemand()),
        ),
    ],
)
def test_wanted(before: PoolState, wanted: list[str], after: PoolState) -> None:
    assert (before.start_making(), before) == (wanted, after)


@pytest.mark.parametrize(
    ("before", "is_kept", "after"),
    [
        (state(), False, state()),
        (state(a=KindDemand(1, 0, 2)), False, state(a=KindDemand(1, 0, 2))),
        (state(a=KindDemand(0, 1, 2)), True, state(a=KindDemand(1, 0, 2))),
        (state(a=KindDemand(1, 2, 3)), True, state(a=KindDemand(2, 1, 3))),
    ],
)
def test_finish_making(before: PoolState, is_kept: bool, after: PoolState) -> None:
    assert (before.finish_making("a"), before) == (is_kept, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (state(), state()),
        (state(a=KindDemand(1, 0, 2)), state(a=KindDemand(1, 0, 2))),
        (state(a=KindDemand(1, 2, 4)), state(a=KindDemand(1, 1, 1))),
        (state(a=KindDemand(2, 1, 1)), state(a=KindDemand(2, 0, 1))),
    ],
)
def test_failed(before: PoolState, after: PoolState) -> None:
    before.abort_making("a")
    assert before == after


@pytest.mark.parametrize(
    ("now", "before", "surplus", "after"),
    [
        (30.0, {"a": KindDemand(3, 0, 3)}, [], {"a": KindDemand(3, 0, 3)}),
        (30.5, {"a": KindDemand(3, 0, 3)}, ["a", "a"], {"a": KindDemand(1, 0, 1)}),
        (30.5, {"a": KindDemand(0, 1, 0)}, [], {"a": KindDemand(0, 1, 0)}),
        (40.0, {"a": KindDemand(3, 0, 3, 10.0)}, [], {"a": KindDemand(3, 0, 3, 10.0)}),
        (300.0, {"a": KindDemand(1, 0, 1)}, [], {"a": KindDemand(1, 0, 1)}),
        (300.5, {"a": KindDemand(1, 0, 1)}, ["a"], {}),
        (300.5, {"a": KindDemand(1, 1, 1)}, ["a"], {"a": KindDemand(0, 1, 0)}),
        (0.0, {"a": KindDemand(), "b": KindDemand(target=1)}, [], {"b": KindDemand(target=1)}),
        (0.0, {"a": KindDemand(2, 0, 1)}, ["a"], {"a": KindDemand(1, 0, 1)}),
        (
            0.0,
            {"a": KindDemand(8, 0, 8), "b": KindDemand(0, 0, 1)},
            ["a"],
            {"a": KindDemand(7, 0, 8), "b": KindDemand(0, 0, 1)},
        ),
    ],
)
def test_surplus(now: float, before: dict[str, KindDemand], surplus: list[str], after: dict[str, KindDemand]) -> None:
    pool: Any = state(**before)
    assert (pool.surplus(now), pool) == (surplus, state(**after))


def test_a_cleared_pool_has_no_shelves() -> None:
    pool = state(a=KindDemand(1, 1, 1))
    pool.clear()
    assert pool == state()
