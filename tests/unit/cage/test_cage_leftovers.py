"""How long processes that a guest leaves running may go on: while they are busy, and never for long."""

from __future__ import annotations

import pytest

from warmcell.cage.linux import processes
from warmcell.cage.linux.processes import Leftovers


class _Host:
    """A fake clock, and processes by the states of their threads."""

    def __init__(self) -> None:
        self.now = 100.0
        self.states: dict[int, str] = {}

    def monotonic(self) -> float:
        return self.now

    def measure_time(self, left: Leftovers | None = None, most: float = 10.0) -> float:
        """The time that processes in these states get, up to `most`."""
        started, left = self.now, left or Leftovers()
        while left.may_continue(self.states) and self.now < started + most:
            assert left.next_look > self.now
            self.now = left.next_look
        return self.now - started


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> _Host:
    made = _Host()
    monkeypatch.setattr(processes, "time", made)
    monkeypatch.setattr(processes, "thread_states", lambda pid: made.states.get(pid, ""))
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
def test_leftovers_get_their_time(host: _Host, states: dict[int, str], least: float, most: float) -> None:
    host.states = states
    assert least - 1e-6 <= host.measure_time() <= most + 1e-6


def test_a_busy_process_may_pause(host: _Host) -> None:
    left = Leftovers()
    host.states = {7: "S"}
    host.measure_time(left, most=0.1)
    host.states = {7: "R"}
    assert left.may_continue(host.states)
    host.now = left.next_look
    host.states = {7: "S"}
    assert 0.14 <= host.measure_time(left) <= 0.16
    left.note_activity()
    assert left.may_continue(host.states)


@pytest.mark.parametrize(("state", "least", "most"), [("S", 0.14, 0.16), ("R", 0.49, 0.51)])
def test_time_in_which_we_stood_still_is_not_theirs(host: _Host, state: str, least: float, most: float) -> None:
    """They may have had no processor either. At most one usual pause of it counts."""
    left = Leftovers()
    host.states = {7: state}
    host.now += 3.0
    assert left.may_continue(host.states)
    host.now = left.next_look
    assert least - 0.06 <= host.measure_time(left) <= most


def test_looking_at_many_takes_a_tenth_of_the_time(host: _Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(pid: int) -> str:
        host.now += 0.001
        return "S"

    monkeypatch.setattr(processes, "thread_states", slow)
    left = Leftovers()
    assert left.may_continue(range(3)) and left.next_look >= host.now + 0.03
