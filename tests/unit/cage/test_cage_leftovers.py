"""How long what a guest leaves running may go on: as long as it is about to end, and never for long."""

from __future__ import annotations

import pytest

from warmcell.cage import leftovers
from warmcell.cage.leftovers import Leftovers


class _Host:
    """A clock that is wound by hand, and processes by the states of their threads."""

    def __init__(self) -> None:
        self.now = 100.0
        self.states: dict[int, str] = {}

    def monotonic(self) -> float:
        return self.now

    def seconds_given(self, most: float = 10.0) -> float:
        """To whoever is there, who all stay as they are."""
        started, left = self.now, Leftovers()
        while left.deserve_time(self.states) and self.now < started + most:
            assert left.next_look > self.now
            self.now = left.next_look
        return self.now - started


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> _Host:
    made = _Host()
    monkeypatch.setattr(leftovers, "time", made)
    monkeypatch.setattr(leftovers, "thread_states", lambda pid: made.states.get(pid, ""))
    return made


@pytest.mark.parametrize(
    ("states", "least", "most"),
    [
        pytest.param({}, 0, 0, id="nobody"),
        pytest.param({7: ""}, 0, 0, id="gone meanwhile"),
        pytest.param({7: "Z", 8: "X"}, 0, 0, id="dead"),
        pytest.param({7: "S", 8: "SS"}, 0.15, 0.16, id="waiting"),
        pytest.param({7: "T"}, 0.15, 0.16, id="stopped"),
        pytest.param({7: "S", 8: "SR"}, 0.5, 0.51, id="running"),
        pytest.param({7: "D"}, 0.5, 0.51, id="in the kernel"),
    ],
)
def test_a_moment_is_given(host: _Host, states: dict[int, str], least: float, most: float) -> None:
    host.states = states
    assert least <= host.seconds_given() <= most + 1e-6


def test_who_was_busy_may_pause(host: _Host) -> None:
    left = Leftovers()
    host.states = {7: "R"}
    assert left.deserve_time(host.states)
    host.now += 0.14
    host.states = {7: "S"}
    assert left.deserve_time(host.states)
    host.now += 0.02
    assert not left.deserve_time(host.states)
    left.were_heard()
    assert left.deserve_time(host.states)


def test_looking_at_many_is_no_burden(host: _Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(pid: int) -> str:
        host.now += 0.001
        return "S"

    monkeypatch.setattr(leftovers, "thread_states", slow)
    left = Leftovers()
    assert left.deserve_time(range(3)) and left.next_look >= host.now + 0.03
