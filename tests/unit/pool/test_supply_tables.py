"""A supply's numbers, step by step: the whole state after each thing that can happen to it."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from warmcell.pool.supply import IDLE_SECONDS, READY, Demand, Item, Supply


class KindDemand(NamedTuple):
    """How many things are ready and being made, and the rest of a demand."""

    ready: int = 0
    making: int = 0
    target: int = 0
    last_used: float = 0.0


class State(NamedTuple):
    """A supply in numbers, the most recently used kind last."""

    smallest: int
    largest: int
    total: int
    demands: dict[str, KindDemand]

    def supply(self) -> Supply[str, str]:
        """With things named after their kinds."""
        supply: Supply[str, str] = Supply(self.smallest, self.largest, self.total)
        for kind, numbers in self.demands.items():
            demand = supply.demands[kind] = Demand(numbers.target, numbers.last_used)
            demand.making.update(Item(kind) for _ in range(numbers.making))
            for _ in range(numbers.ready):
                item: Item[str, str] = Item(kind)
                item.thing, item.state, item.since = kind, READY, numbers.last_used
                demand.ready.append(item)
        return supply


def state(smallest: int = 1, largest: int = 4, total: int = 8, **demands: KindDemand) -> State:
    return State(smallest, largest, total, demands)


def numbers_of(supply: Supply[str, str]) -> State:
    demands = {
        kind: KindDemand(len(demand.ready), len(demand.making), demand.target, demand.last_used)
        for kind, demand in supply.demands.items()
    }
    return State(supply.smallest, supply.largest, supply.total, demands)


def test_a_new_supply_is_empty() -> None:
    supply: Supply[str, str] = Supply(1, 4, 8)
    assert numbers_of(supply) == state() and not supply.is_closed
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
def test_hand_over(before: State, is_hit: bool, after: State) -> None:
    supply = before.supply()
    assert (supply.take_ready("a", 7.0), numbers_of(supply)) == ("a" if is_hit else None, after)


def test_who_is_used_last_stands_last() -> None:
    supply = state(a=KindDemand(target=1), b=KindDemand(target=1)).supply()
    supply.take_ready("a", 1.0)
    assert list(supply.demands) == ["b", "a"]


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
def test_start_making(before: State, wanted: list[str], after: State) -> None:
    supply = before.supply()
    assert ([item.key for item in supply.start_making()], numbers_of(supply)) == (wanted, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (state(a=KindDemand(0, 1, 2)), state(a=KindDemand(1, 0, 2))),
        (state(a=KindDemand(1, 2, 3)), state(a=KindDemand(2, 1, 3))),
    ],
)
def test_finish(before: State, after: State) -> None:
    supply = before.supply()
    assert (supply.finish(next(iter(supply.demands["a"].making)), "a", 0), numbers_of(supply)) == (True, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (state(a=KindDemand(1, 2, 4)), state(a=KindDemand(1, 1, 1))),
        (state(a=KindDemand(2, 1, 1)), state(a=KindDemand(2, 0, 1))),
    ],
)
def test_fail(before: State, after: State) -> None:
    supply = before.supply()
    item = next(iter(supply.demands["a"].making))
    supply.fail(item)
    assert numbers_of(supply) == after
    assert not supply.finish(item, "a", 0)
    supply.fail(item)
    assert numbers_of(supply) == after


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
    supply = State(1, 4, 8, before).supply()
    assert (supply.surplus(now), numbers_of(supply)) == (surplus, State(1, 4, 8, after))


def test_a_cleared_supply_has_no_demand_and_keeps_nothing_that_was_being_made() -> None:
    supply = state(a=KindDemand(1, 1, 1)).supply()
    (item,) = supply.demands["a"].making
    assert (supply.clear(), numbers_of(supply)) == (["a"], state())
    supply.take_ready("a", 0)
    assert supply.start_making() and not supply.finish(item, "a", 0)
