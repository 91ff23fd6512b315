"""Handles a lack of descriptors: closes unused ones, then waits for another run to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from weakref import WeakSet

from warmcell.core.errors import SandboxError
from warmcell.lifetime.descriptors import DescriptorsExhausted, host_failure, is_exhaustion, raise_limit
from warmcell.lifetime.ownership import own
from warmcell.lifetime.run import Run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    T = TypeVar("T")
else:
    Protocol = object  # for type checkers only


class Holder(Protocol):
    """Something that keeps unused descriptors open for later runs."""

    def shed(self) -> bool:
        """Closes what is unused. Returns whether there was anything. Called from any thread."""
        ...


class DescriptorPressure:
    """One per program, because its descriptors are shared. A fork starts with no runs in progress."""

    def __init__(self) -> None:
        self._holders: WeakSet[Holder] = WeakSet()
        self.abandon()
        own(self)

    def abandon(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._in_progress = self._waiting = self._ends = 0

    def register(self, holder: Holder) -> None:
        """Makes `holder` shed when descriptors run out."""
        self._holders.add(holder)

    def run_started(self) -> None:
        with self._lock:
            self._in_progress += 1

    def run_ended(self) -> None:
        with self._lock:
            self._in_progress = max(0, self._in_progress - 1)
            self._ends += 1
            if self._waiting:
                self._changed.notify_all()

    def retry(self, attempt: Callable[[], T], run: Run, seconds: float, own: Holder | None = None) -> T:
        """Calls `attempt` until descriptors suffice. If it fails, it must leave nothing open and no guest started.

        Tries again at once if the limit was raised or something was closed, else when another run has ended. After
        `seconds`, or if no other run is in progress, raises the error that names the limit. `own`: the holder that the
        attempt itself needs, which does not shed.
        """
        deadline = time.monotonic() + seconds
        while True:
            seen = self._ends
            failure: SandboxError
            try:
                return attempt()
            except DescriptorsExhausted as error:
                failure = error
            except OSError as error:
                if not is_exhaustion(error):
                    raise
                failure = host_failure(error)
            if not raise_limit() and not self._shed(own) and not self._await_end(seen, run, deadline):
                raise failure
            run.check()

    def _shed(self, own: Holder | None) -> bool:
        return any(holder.shed() for holder in tuple(self._holders) if holder is not own)

    def _await_end(self, seen: int, run: Run, deadline: float) -> bool:
        """Waits for the end of a run, counted from `seen`. Returns False if all runs in progress are waiting here."""
        with run.on_cancel(self._wake), self._changed:
            self._waiting += 1
            try:
                while self._ends == seen and not run.is_cancelled:
                    left = deadline - time.monotonic()
                    if left <= 0 or self._in_progress <= self._waiting:
                        return False
                    self._changed.wait(min(left, 1.0))
                return True
            finally:
                self._waiting -= 1

    def _wake(self) -> None:
        """Called by the canceller, which may hold any lock, so it must not block. The waiter also polls."""
        if self._changed.acquire(blocking=False):
            self._changed.notify_all()
            self._changed.release()


descriptor_pressure = DescriptorPressure()
