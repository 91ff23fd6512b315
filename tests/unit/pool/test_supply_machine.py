"""A supply's numbers hold whatever happens in whatever order: nothing is made twice, forgotten, or beyond its bounds."""

from __future__ import annotations

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from warmcell.pool.supply import GONE, IDLE_SECONDS, MAKING, READY, Item, Supply

_KINDS = st.sampled_from(("python", "node", "shell"))


class SupplyMachine(RuleBasedStateMachine):
    """Plays the owner: makes what is wanted, ends what is surplus, and keeps its own list of what exists."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.numbers = count()
        self.waiting: dict[int, str] = {}
        self.making: list[Item[str, int]] = []

    @initialize(smallest=st.integers(0, 3), largest=st.integers(0, 4), total=st.integers(0, 6))
    def start(self, smallest: int, largest: int, total: int) -> None:
        self.supply: Supply[str, int] = Supply(smallest, largest, total)
        self.largest, self.total = largest, total

    @rule(kind=_KINDS)
    def take_ready(self, kind: str) -> None:
        oldest = min((thing for thing, its_kind in self.waiting.items() if its_kind == kind), default=None)
        assert self.supply.take_ready(kind, self.now) == oldest
        self.waiting.pop(-1 if oldest is None else oldest, None)

    @rule()
    def order(self) -> None:
        self.making += self.supply.start_making()
        assert not self.supply.start_making(), "what is being made is wanted again"

    @rule()
    def order_one(self) -> None:
        wanted = self.supply.start_making(1)
        assert len(wanted) <= 1
        self.making += wanted

    @precondition(lambda self: self.making)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        item = self.making.pop(data.draw(st.integers(0, len(self.making) - 1)))
        was_wanted, thing = item.state == MAKING, next(self.numbers)
        assert self.supply.finish(item, thing, self.now) == was_wanted
        assert item.state == (READY if was_wanted else GONE)
        if was_wanted:
            self.waiting[thing] = item.key

    @precondition(lambda self: self.making)
    @rule()
    def fail(self) -> None:
        item = self.making.pop()
        was_wanted = item.state == MAKING
        self.supply.fail(item)
        assert item.state == GONE
        wanted = self.supply.start_making()
        self.making += wanted
        assert not was_wanted or item.key not in [other.key for other in wanted], "tried again before anybody asked"

    @rule(seconds=st.sampled_from((0.0, 1.0, IDLE_SECONDS + 1, 10 * IDLE_SECONDS + 1)))
    def shrink(self, seconds: float) -> None:
        self.now += seconds
        for thing in self.supply.surplus(self.now):
            del self.waiting[thing]

    @precondition(lambda self: not self.making)
    @rule()
    def sleep_for_long(self) -> None:
        self.now += 10 * IDLE_SECONDS + 1
        for thing in self.supply.surplus(self.now):
            del self.waiting[thing]
        assert not self.waiting and not self.supply.demands

    @rule()
    def clear(self) -> None:
        assert sorted(self.supply.clear()) == sorted(self.waiting)
        self.waiting.clear()
        assert all(item.state == GONE for item in self.making), "kept a thing after the end"

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "supply"):
            return
        demands = self.supply.demands
        items = [item for demand in demands.values() for item in demand.ready]
        assert {item.thing: item.key for item in items} == self.waiting
        assert all(item.state == READY and item in demands[item.key].ready for item in items)
        wanted = [item for item in self.making if item.state == MAKING]
        assert {item for demand in demands.values() for item in demand.making} == set(wanted)
        assert len(self.waiting) + len(wanted) <= self.total
        assert all(demand.target <= self.largest for demand in demands.values())


SupplyMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSupply = SupplyMachine.TestCase


def _supply(smallest: int, largest: int, total: int) -> Supply[str, int]:
    return Supply(smallest, largest, total)


def test_a_burst_doubles_what_is_kept_up_to_its_bound_and_idleness_shrinks_it() -> None:
    supply = _supply(smallest=1, largest=4, total=16)
    for expected in (2, 4, 4):
        assert supply.take_ready("python", now=0) is None
        assert supply.demands["python"].target == expected
    items = supply.start_making()
    assert [item.key for item in items] == ["python"] * 4
    assert all(supply.finish(item, number, 0) for number, item in enumerate(items))
    assert supply.surplus(IDLE_SECONDS + 1) == [0, 1, 2]
    assert supply.surplus(10 * IDLE_SECONDS + 1) == [3] and not supply.demands


def test_the_kind_used_last_is_made_first_when_room_is_short() -> None:
    supply = _supply(smallest=0, largest=4, total=1)
    supply.take_ready("old", now=1)
    supply.take_ready("new", now=2)
    assert [item.key for item in supply.start_making()] == ["new"]


def test_kinds_that_were_not_used_for_longest_give_way() -> None:
    """Of twelve kinds the last six have a thing each; none is remembered for ever."""
    supply = _supply(smallest=1, largest=4, total=6)
    for number in range(12):
        assert supply.take_ready(f"kind {number}", now=number) is None
        supply.surplus(number)
        for item in supply.start_making():
            assert supply.finish(item, number, number)
    counts = {kind: len(demand.ready) for kind, demand in supply.demands.items()}
    assert counts == {f"kind {number}": 1 for number in range(6, 12)}


def test_room_is_dealt_one_by_one() -> None:
    supply = _supply(smallest=0, largest=4, total=8)
    for kind in ("shell", "node", "python"):
        for _ in range(4):
            supply.take_ready(kind, now=1)
    kinds = [item.key for item in supply.start_making()]
    assert {kind: kinds.count(kind) for kind in kinds} == {"python": 3, "node": 3, "shell": 2}
