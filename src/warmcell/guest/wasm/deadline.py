"""The deadline of the run in progress, and the thread that enforces it.

Epoch interruption stops guest code at the deadline, and our host calls check the deadline themselves. If neither works,
the supervisor kills the process.
"""

from __future__ import annotations

import math
import os
import select
import time
from _thread import allocate_lock, start_new_thread  # `threading` takes longer to load
from collections.abc import Callable

#: Interrupt again: the guest may have been in a host call at the first interruption.
_REPEAT_SECONDS = 0.05


class DeadlineReached(Exception):
    """Raised inside a host call at the deadline."""


class Deadline:
    """One run at a time. The thread sleeps until the next deadline: a short run does not wake it."""

    def __init__(self, control_fd: int, interrupt: Callable[[], None]) -> None:
        self._control_fd, self._interrupt = control_fd, interrupt
        self._lock = allocate_lock()
        self._deadline = math.inf
        self._next_check = math.inf
        self._wake_reader, self._wake_writer = os.pipe()
        start_new_thread(self._watch, ())

    def start(self, seconds: float) -> None:
        with self._lock:
            self._deadline = time.monotonic() + seconds
            must_wake = self._deadline < self._next_check
        if must_wake:
            os.write(self._wake_writer, b"!")

    def stop(self) -> None:
        # Under the lock: a timer that fires late for this run must not interrupt the next one.
        with self._lock:
            self._deadline = math.inf

    def remaining(self) -> float:
        return self._deadline - time.monotonic()

    def has_passed(self) -> bool:
        return self.remaining() <= 0

    def sleep(self, seconds: float) -> None:
        """Sleeps for the guest, at most until the deadline."""
        remaining = self.remaining()
        if seconds < remaining:
            time.sleep(max(0.0, seconds))
            return
        time.sleep(max(0.0, remaining))
        raise DeadlineReached

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._control_fd, 0)  # no events: only a hang-up of the supervisor is reported
        poller.register(self._wake_reader, select.POLLIN)
        while True:
            for descriptor, _ in poller.poll(self._check()):
                if descriptor == self._control_fd:
                    os._exit(0)
                os.read(self._wake_reader, 4096)

    def _check(self) -> int | None:
        """Interrupts a run past its deadline. Returns the milliseconds until the next check, or None."""
        with self._lock:
            now = time.monotonic()
            self._next_check = self._deadline
            if self._deadline <= now:
                self._interrupt()
                self._next_check = now + _REPEAT_SECONDS
            return None if math.isinf(self._next_check) else math.ceil((self._next_check - now) * 1000)
