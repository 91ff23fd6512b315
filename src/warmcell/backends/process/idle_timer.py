"""IdleTimer: ends a live cage in which nothing has run, and of which nothing was asked, for some time."""

from __future__ import annotations

import time
from collections.abc import Callable

from warmcell.sessions.loop import Loop


class IdleTimer:
    """Runs in the loop of its cage, with one entry there however often it starts: the loop keeps entries until their
    time comes, and a cage may have a program every second for days.
    """

    def __init__(
        self,
        loop: Loop,
        seconds: float | None,
        is_busy: Callable[[], bool],
        on_idle: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop, self._seconds, self._clock = loop, seconds, clock
        self._is_busy, self._on_idle = is_busy, on_idle
        #: Number of requests so far, counted by the cage in any thread: each one restarts the time.
        self.calls = 0
        self._calls_before, self._until = 0, 0.0
        self._is_set = False

    def start(self) -> None:
        """Starts the time, or starts it again."""
        if self._seconds is None:
            return
        self._calls_before, self._until = self.calls, self._clock() + self._seconds
        if not self._is_set:
            self._set(self._seconds)

    def _set(self, seconds: float) -> None:
        self._is_set = True
        self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._is_set = False
        if self._is_busy() or self.calls != self._calls_before:
            self.start()
        elif (left := self._until - self._clock()) > 0:
            self._set(left)
        else:
            self._on_idle()
