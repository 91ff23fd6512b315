"""A supply and its maker: every thing is in one state, and nothing starts or stops under the lock."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.helpers import PATIENCE, until

from warmcell.lifetime import descriptor_pressure as pressure_module
from warmcell.lifetime.descriptor_pressure import DescriptorPressure
from warmcell.lifetime.run import Run
from warmcell.pool.supply import GONE, LEASED, READY, Supply


class Workshop(Supply[str, str]):
    """Makes names of things, and remembers what it was asked to end."""

    check_seconds = 0.01

    def __init__(self, smallest: int = 0, largest: int = 4, total: int = 8) -> None:
        self.made, self.ended = 0, list[str]()
        self.on_make: Callable[[], object] = lambda: None
        super().__init__(smallest, largest, total)

    def is_lock_free(self) -> bool:
        answers = list[bool]()

        def ask() -> None:
            answers.append(self.lock.acquire(timeout=PATIENCE))
            if answers[0]:
                self.lock.release()

        other = threading.Thread(target=ask)
        other.start()
        other.join()
        return answers[0]

    def make_ahead(self, key: str) -> str | None:
        assert self.is_lock_free()
        self.on_make()
        self.made += 1
        return f"{key} {self.made}"

    def end(self, things: list[str]) -> None:
        assert self.is_lock_free()
        self.ended += things

    def miss(self, key: str = "a") -> None:
        assert self.take_ready(key, 0.0) is None
        self.start_maker()
        with self.lock:
            self.changed.notify()


@pytest.fixture
def supply(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    monkeypatch.setattr(Workshop, "lower_targets", lambda *_: None)
    made = Workshop()
    yield made
    made.stop_maker(PATIENCE)
    assert made.maker is None


def test_a_thing_that_is_used_again_goes_back_and_forth_and_then_is_gone() -> None:
    supply = Supply[str, str](0, 4, 8)
    supply.add_leased("new", "thing")
    (item,) = supply.in_use.values()
    assert (item.state, list(supply.in_use), supply.ready()) == (LEASED, ["thing"], [])
    assert supply.give_back("thing", "used", 5.0)
    assert (item.state, item.key, item.since, list(supply.in_use), supply.ready()) == (
        READY,
        "used",
        5.0,
        [],
        ["thing"],
    )
    assert supply.lease_best(["new"], lambda _: 0) is None
    assert supply.lease_best(["new", "used"], lambda _: 0) == "thing"
    assert (item.state, list(supply.in_use), supply.ready()) == (LEASED, ["thing"], [])
    supply.forget("thing")
    assert (item.state, list(supply.in_use), supply.ready()) == (GONE, [], [])
    assert not supply.give_back("thing", "used", 6.0)


@pytest.mark.parametrize(
    ("ranks", "best"),
    [
        ({"old": 0, "new": 0, "other": 0}, "new"),
        ({"old": 0, "new": 1, "other": 1}, "old"),
        ({"old": None, "new": 1, "other": 0}, "other"),
        ({"old": None, "new": None, "other": 3}, "other"),
        ({"old": None, "new": None, "other": None}, None),
    ],
)
def test_the_best_one_is_leased_and_of_equals_the_newest(ranks: dict[str, int | None], best: str | None) -> None:
    supply = Supply[str, str](0, 4, 8)
    for thing, key in (("old", "a"), ("new", "a"), ("other", "b")):
        supply.add_leased(key, thing)
        assert supply.give_back(thing, key, 0.0)
    assert supply.lease_best(["a", "b", "unknown"], ranks.__getitem__) == best
    assert set(supply.ready()) == {"old", "new", "other"} - {best}


def test_a_closed_supply_keeps_nothing() -> None:
    supply = Supply[str, str](0, 4, 8)
    supply.take_ready("a", 0.0)
    (item,) = supply.start_making()
    supply.add_leased("a", "leased")
    supply.stop_maker(0)
    assert not supply.finish(item, "made", 0.0) and item.state == GONE
    assert not supply.give_back("leased", "a", 0.0)
    assert not supply.ready() and not supply.in_use


def test_the_keeper_makes_what_is_missing_and_ends_what_is_too_much(supply: Workshop) -> None:
    supply.miss()
    until(lambda: supply.ready() == ["a 1"])
    assert supply.take_ready("a", 0.0) == "a 1"
    with supply.lock:
        supply.changed.notify()
    until(lambda: supply.ready() == ["a 2"])
    with supply.lock:
        supply.demands["a"].target = 0
        supply.changed.notify()
    until(lambda: supply.ended == ["a 2"])
    until(lambda: supply.maker is None)  # there is no demand left
    supply.miss()
    until(lambda: supply.ready() == ["a 3"])


def test_more_than_the_bounds_is_never_made(supply: Workshop) -> None:
    supply.largest, supply.total = 2, 3
    for key in "aabbcc":
        supply.take_ready(key, 0.0)
    supply.start_maker()
    until(lambda: len(supply.ready()) == 3 and not supply.is_making)
    assert sorted(thing.split()[0] for thing in supply.ready()) == ["a", "b", "c"] and supply.made == 3


@pytest.mark.parametrize("ending", ["close", "shed"])
def test_what_is_being_made_when_nobody_wants_it_any_more_is_ended(supply: Workshop, ending: str) -> None:
    is_making, may_go_on = threading.Event(), threading.Event()
    supply.on_make = lambda: (is_making.set(), may_go_on.wait(PATIENCE))
    supply.miss()
    assert is_making.wait(PATIENCE) and supply.is_making
    if ending == "shed":
        assert not supply.shed()
        may_go_on.set()
    else:
        letting_on = threading.Thread(target=lambda: (until(lambda: supply.is_closed), may_go_on.set()))
        letting_on.start()
        supply.stop_maker(PATIENCE)
        letting_on.join()
        assert supply.maker is None and not supply.is_making
    until(lambda: supply.ended == ["a 1"])
    assert not supply.ready()


def test_what_cannot_be_made_is_tried_again_when_one_is_missing(
    supply: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(Workshop, "make_ahead", lambda _, key: tries.append(key))
        supply.miss()
        until(lambda: supply.maker is None)  # it is forgotten, and nothing else is wanted
    assert tries == ["a"] and not supply.demands
    supply.miss()
    until(lambda: supply.ready() == ["a 1"])


def test_a_keeper_that_fails_unexpectedly_leaves_nothing_in_the_making(
    supply: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda hook: failures.append(hook.exc_type))
    supply.on_make = lambda: 1 / 0
    supply.take_ready("a", 0.0)
    supply.take_ready("a", 0.0)
    supply.start_maker()
    until(lambda: failures == [ZeroDivisionError] and supply.maker is None)
    assert not supply.is_making and not supply.demands["a"].making
    supply.on_make = lambda: None
    supply.miss()
    until(lambda: supply.ready() == ["a 1"])


def test_without_a_thread_it_works_without_a_keeper(supply: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError("no thread")))
    supply.start_maker()
    assert supply.maker is None and supply.take_ready("a", 0.0) is None


def test_a_fork_starts_with_nothing_even_if_another_thread_held_the_lock(supply: Workshop) -> None:
    supply.miss()
    until(lambda: supply.ready() == ["a 1"])
    supply.stop_maker(PATIENCE)
    supply.is_closed = False
    supply.add_leased("a", "leased")
    has_lock, may_release = threading.Event(), threading.Event()

    def hold(lock: threading.RLock) -> None:
        with lock:
            has_lock.set()
            may_release.wait(PATIENCE)

    holder = threading.Thread(target=hold, args=(supply.lock,))
    holder.start()
    assert has_lock.wait(PATIENCE)
    supply.abandon()
    assert supply.is_lock_free() and not supply.demands and not supply.ready() and not supply.in_use
    assert not supply.give_back("leased", "a", 0.0) and not supply.ended
    may_release.set()
    holder.join()


def test_under_descriptor_pressure_what_is_ready_is_ended(supply: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressure_module, "raise_limit", lambda: False)
    pressure = DescriptorPressure()
    pressure.register(supply)
    supply.miss()
    until(lambda: supply.ready() == ["a 1"])
    supply.stop_maker(PATIENCE)
    supply.add_leased("a", "leased")

    def attempt() -> str:
        if not supply.ended:
            raise OSError(errno.EMFILE, "no descriptors")
        return "done"

    assert pressure.retry(attempt, Run(), 0) == "done"
    assert (supply.ended, list(supply.in_use)) == (["a 1"], ["leased"])
