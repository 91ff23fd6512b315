"""Processes that a guest leaves running when it exits: they get a moment to finish, and are then killed.

A shell does not wait for its process substitutions: `tee >(cat)` has exited while cat still has the last line to write.
A reader of its pipe gets that line, and so do we. Processes that only wait, or are busy for longer, were left in the
background on purpose, and do not delay the run.
"""

from __future__ import annotations

import time

from .linux.processes import thread_states

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable

_BUSY_SECONDS = 0.5
_IDLE_SECONDS = 0.15  # enough for a writer to a full pipe whose reader waits for the processor
_LOOK_SECONDS = 0.005


class Leftovers:
    """Those of one cell. Its owner calls `may_continue` with their pids from time to time."""

    def __init__(self) -> None:
        self.next_look = time.monotonic()
        self._until = self.next_look + _BUSY_SECONDS
        self._idle_until = self.next_look + _IDLE_SECONDS

    def note_activity(self) -> None:
        """One of them made a call that we answer: it was waiting for us only."""
        self._idle_until = time.monotonic() + _IDLE_SECONDS

    def may_continue(self, pids: Iterable[int]) -> bool:
        """Whether one of them is alive and its time is not over.

        A process that is about to exit is running or runnable, or waits for another one of them that is.
        """
        started = time.monotonic()
        is_there = is_busy = False
        for states in map(thread_states, pids):
            is_there = is_there or bool(states.strip("ZX"))
            is_busy = "R" in states or "D" in states
            if is_busy:
                break
        now = time.monotonic()
        if is_busy:
            self._idle_until = now + _IDLE_SECONDS
        # Looking at many takes a while: at most a tenth of our time.
        self.next_look = now + max(_LOOK_SECONDS, 10 * (now - started))
        return is_there and now < min(self._until, self._idle_until)
