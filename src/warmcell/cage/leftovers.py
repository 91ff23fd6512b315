"""What a guest leaves running when it ends: it gets a moment to finish what it is about, and is then killed.

A shell does not wait for its process substitutions: `tee >(cat)` has ended while cat still has the last line to write.
Who reads from such a shell through a pipe gets that line, and so do we. What only waits, or is busy for longer than
that, is what people leave in the background, and holds up nobody.
"""

from __future__ import annotations

import time

from .linux.processes import thread_states

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable

_BUSY_SECONDS = 0.5
_IDLE_SECONDS = 0.15  # also for the writer to a full pipe, whose reader waits for its turn
_LOOK_SECONDS = 0.005


class Leftovers:
    """Those of one cell. Somebody who can be asked for their pids looks at them from time to time."""

    def __init__(self) -> None:
        self.next_look = time.monotonic()
        self._until = self.next_look + _BUSY_SECONDS
        self._idle_until = self.next_look + _IDLE_SECONDS

    def were_heard(self) -> None:
        """One of them made a call that we answer: it waited for us, and for nothing else."""
        self._idle_until = time.monotonic() + _IDLE_SECONDS

    def deserve_time(self, pids: Iterable[int]) -> bool:
        """Whether one of them is there, and had less than its moment.

        Who is about to end by itself is running, or waits for another of them who is: on a busy host, for its turn.
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
        # Looking at many takes a while: never more than a tenth of the looker's time.
        self.next_look = now + max(_LOOK_SECONDS, 10 * (now - started))
        return is_there and now < min(self._until, self._idle_until)
