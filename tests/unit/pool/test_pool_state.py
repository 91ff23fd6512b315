"""The pool's numbers hold whatever happens in whatever order: nothing is made twice, forgotten, or beyond its bounds."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from warmcell.pool.state import IDLE_SECONDS, PoolState

_KINDS = st.sampled_from(("python", "node", "shell"))


class PoolMachine(RuleBasedStateMachine):
    """Plays the pool: makes what is wanted, destroys what is surplus, and keeps its own count of what exists."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.waiting: dict[str, int] = {}
        self.making: list[str] = []
        self.used = 0

    @initialize(smallest=st.integers(0, 3), largest=st.integers(0, 4), total=st.integers(0, 6))
    def start(self, smallest: int, largest: int, total: int) -> None:
        self.state = PoolState(smallest, largest, total)
        self.largest, self.total = largest, total

    @rule(kind=_KINDS)
    def lease(self, kind: str) -> None:
        had = self.waiting.get(kind, 0)
        assert self.state.lease(kind, self.now) == bool(had)
        if had:
            self.waiting[kind] -= 1
            self.used += 1

    @rule()
    def order(self) -> None:
        self.making += [str(kind) for kind in self.state.start_making()]
        assert not self.state.start_making(), "what is being made is wanted again"

    @precondition(lambda self: self.making)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        kind = self.making.pop(data.draw(st.integers(0, len(self.making) - 1)))
        if self.state.finish_making(kind):
            self.waiting[kind] = self.waiting.get(kind, 0) + 1

    @precondition(lambda self: self.making)
    @rule()
    def fail(self) -> None:
        kind = self.making.pop()
        self.state.abort_making(kind)
        wanted = [str(other) for other in self.state.start_making()]
        self.making += wanted
        assert kind not in wanted, "tried again before anybody asked"

    @rule(seconds=st.sampled_from((0.0, 1.0, IDLE_SECONDS + 1, 10 * IDLE_SECONDS + 1)))
    def shrink(self, seconds: float) -> None:
        self.now += seconds
        for kind in self.state.surplus(self.now):
            self.waiting[str(kind)] -= 1

    @precondition(lambda self: not self.making)
    @rule()
    def sleep_for_long(self) -> None:
        self.now += 10 * IDLE_SECONDS + 1
        for kind in self.state.surplus(self.now):
            self.waiting[str(kind)] -= 1
        assert not any(self.waiting.values()) and not self.state.demands

    @rule()
    def close(self) -> None:
        self.state.clear()
        self.waiting.clear()
        assert not any(self.state.finish_making(kind) for kind in self.making), "kept a cell after the end"
        self.making.clear()

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "state"):
            return
        assert all(count >= 0 for count in self.waiting.values())
        demands = {str(kind): demand for kind, demand in self.state.demands.items()}
        assert {kind: count for kind, count in self.waiting.items() if count} == {
            kind: demand.ready for kind, demand in demands.items() if demand.ready
        }
        assert sum(self.waiting.values()) + len(self.making) <= self.total
        assert all(demand.target <= self.largest for demand in demands.values())


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPoolState = PoolMachine.TestCase


def test_a_burst_doubles_the_shelf_up_to_its_bound_and_idleness_shrinks_it() -> None:
    state = PoolState(smallest=1, largest=4, total=16)
    for expected in (2, 4, 4):
        assert not state.lease("python", now=0)
        assert state.demands["python"].target == expected
    made = state.start_making()
    assert made == ["python"] * 4 and all(state.finish_making(kind) for kind in made)
    assert state.surplus(IDLE_SECONDS + 1) == ["python"] * 3
    assert state.surplus(10 * IDLE_SECONDS + 1) == ["python"] and not state.demands


def test_the_kind_used_last_is_made_first_when_room_is_short() -> None:
    state = PoolState(smallest=0, largest=4, total=1)
    state.lease("old", now=1)
    state.lease("new", now=2)
    assert state.start_making() == ["new"]


def test_kinds_that_were_not_used_for_longest_give_way() -> None:
    """Of twelve kinds the last six have a cell each; none is remembered for ever."""
    state = PoolState(smallest=1, largest=4, total=6)
    ready: dict[str, int] = {}
    for number in range(12):
        assert not state.lease(f"kind {number}", now=number)
        for kind in state.surplus(number):
            ready[str(kind)] -= 1
        for kind in state.start_making():
            assert state.finish_making(kind)
            ready[str(kind)] = ready.get(str(kind), 0) + 1
    assert {kind: count for kind, count in ready.items() if count} == {f"kind {number}": 1 for number in range(6, 12)}
    assert len(state.demands) == 6


def test_room_is_dealt_one_by_one() -> None:
    state = PoolState(smallest=0, largest=4, total=8)
    for kind in ("shell", "node", "python"):
        for _ in range(4):
            state.lease(kind, now=1)
    made = state.start_making()
    assert {kind: made.count(kind) for kind in made} == {"python": 3, "node": 3, "shell": 2}
