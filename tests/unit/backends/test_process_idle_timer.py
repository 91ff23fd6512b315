"""When a live cage is idle: no program, no unanswered request, and no request within its idle time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warmcell.backends.process.idle_timer import IdleTimer


class Clock:
    """Stands in for the loop of the cage and for the time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def call_later(self, seconds: float, work: Callable[[], None]) -> None:
        self.waiting.append((self.now + seconds, work))

    def advance(self) -> float:
        """To the time of the only entry, which is then over."""
        [(self.now, work)] = self.waiting
        self.waiting.clear()
        work()
        return self.now


def make_timer(is_busy: Callable[[], bool]) -> tuple[IdleTimer, Clock, list[float]]:
    clock, ends = Clock(), list[float]()
    loop: Any = clock
    return IdleTimer(loop, 10.0, is_busy, lambda: ends.append(clock.now), clock), clock, ends


def test_the_time_starts_with_the_last_start_and_has_one_entry() -> None:
    timer, clock, ends = make_timer(lambda: False)
    for _ in range(1000):
        timer.start()
        clock.now += 1 / 128
    assert len(clock.waiting) == 1
    clock.advance()
    assert not ends
    clock.advance()
    assert ends == [110.0 + 999 / 128]
    assert not clock.waiting


def test_a_request_starts_the_time_again() -> None:
    timer, clock, ends = make_timer(lambda: False)
    timer.start()
    timer.calls += 1
    assert clock.advance() == 110.0 and not ends
    assert clock.advance() == 120.0 and ends == [120.0]


def test_a_start_that_takes_longer_than_the_idle_time_is_not_ended() -> None:
    """On a busy host the agent may need longer than a short idle time: each attempt would end like that."""
    busy = [True]
    timer, clock, ends = make_timer(lambda: busy[0])
    timer.start()
    timer.calls += 1
    for _ in range(5):
        clock.advance()
    assert not ends
    busy[0] = False
    clock.advance()
    assert ends == [160.0]


def test_without_an_idle_time_there_is_no_timer() -> None:
    clock = Clock()
    loop: Any = clock
    IdleTimer(loop, None, lambda: False, lambda: None, clock).start()
    assert not clock.waiting
