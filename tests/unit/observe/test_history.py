"""The history: what happened in each step, and no more of it than the bound."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import pytest
from tests.helpers import PATIENCE

from warmcell.core import events
from warmcell.observe.history import MOST_STEPS, STEP_SECONDS, History, quantile

DONE = {"outcome": "ok", "duration": 0.1, "queued": 0.1, "peak_memory_bytes": 7 << 20}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(clock: Clock) -> Iterator[History]:
    made = History(clock)
    yield made
    made.close()


def run(subject: str, **fields: object) -> None:
    events.emit("run.asked", subject, {})
    events.emit("run.started", subject, {})
    events.emit("run.ended", subject, DONE | fields)


def test_a_step_counts_what_ended_in_it(history: History, clock: Clock) -> None:
    run("a")
    run("b", outcome="timeout", duration=None)
    clock.now += 2 * STEP_SECONDS
    events.emit("run.asked", "c", {})
    first, between, last = history.steps()
    assert first["outcomes"] == {"ok": 1, "timeout": 1} and first["memory"] == 7 << 20
    assert 0.2 <= first["p50"] <= 0.23
    assert (first["running"], first["waiting"]) == (1, 1)
    assert between["outcomes"] == {} and between["p50"] is None and between["resident"] == first["resident"] > 0
    assert last["waiting"] == 1 and last["time"] - first["time"] == 10
    assert [step["time"] for step in history.steps(since=1005)] == [1005, 1010]


@pytest.mark.parametrize("since", [1e12, 1e300, float("inf")])
def test_a_time_far_ahead_is_found_at_once(history: History, since: float) -> None:
    """Not step by step: meanwhile no run could begin or end."""
    run("a")
    finding = Thread(target=history.steps, args=(since,), daemon=True)
    finding.start()
    finding.join(PATIENCE)
    assert not finding.is_alive() and history.steps(since) == []
    assert [step["time"] for step in history.steps(1000.5)] == []
    assert [step["time"] for step in history.steps(999.5)] == [1000]


def test_it_is_bounded(history: History, clock: Clock) -> None:
    for number in range(MOST_STEPS + 50):
        clock.now += STEP_SECONDS
        run(str(number), duration=float(number))
    assert len(history.steps()) == MOST_STEPS
    assert not history._states
    clock.now += 10 * MOST_STEPS * STEP_SECONDS
    assert len(history.steps()) <= MOST_STEPS


def test_a_clock_that_is_set_back_goes_on_in_the_last_step(history: History, clock: Clock) -> None:
    run("a")
    clock.now -= 500
    run("b")
    assert [step["outcomes"] for step in history.steps()] == [{"ok": 2}]


def test_closed_it_hears_nothing(clock: Clock) -> None:
    made = History(clock)
    made.close()
    run("a")
    assert not made._steps and not events.listeners


def test_quantiles() -> None:
    assert quantile({}, 0.5) is None
    assert quantile({0: 1}, 0.95) == 0.0005
    assert quantile({0: 90, 50: 10}, 0.5) == 0.0005
    assert quantile({0: 90, 50: 10}, 0.95) == pytest.approx(0.0005 * 1.1**50, rel=1e-3)
