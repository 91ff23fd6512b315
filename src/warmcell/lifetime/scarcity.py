"""When descriptors run out: what waits unused is let go of, and who cannot be served now waits for others to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from weakref import WeakSet

from warmcell.core.errors import SandboxError
from warmcell.lifetime.descriptors import DescriptorsExhausted, host_failure, is_exhaustion
from warmcell.lifetime.ownership import own
from warmcell.lifetime.run import Run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    T = TypeVar("T")
else:
    Protocol = object  # type checkers alone look at these


class Holder(Protocol):
    """Something that keeps descriptors open for runs that may never come."""

    def shed(self) -> bool:
        """Lets go of what nobody uses; whether there was anything. Called from any thread."""
        ...


class Scarcity:
    """One for the program, because its descriptors are. In a fork nothing is under way."""

    def __init__(self) -> None:
        self._holders: WeakSet[Holder] = WeakSet()
        self.abandon()
        own(self)

    def abandon(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._under_way = self._waiting = self._ends = 0

    def hold(self, holder: Holder) -> None:
        """It is asked to shed when somebody has none left."""
        self._holders.add(holder)

    def begun(self) -> None:
        with self._lock:
            self._under_way += 1

    def ended(self) -> None:
        with self._lock:
            self._under_way = max(0, self._under_way - 1)
            self._ends += 1
            if self._waiting:
                self._changed.notify_all()

    def retried(self, attempt: Callable[[], T], run: Run, seconds: float, own: Holder | None = None) -> T:
        """What `attempt` returns. It must leave nothing behind when it fails, and have begun nothing of the guest's.

        Where descriptors are missing it is tried again: at once after something was let go of, else when another run
        has ended. The error names the limit when nobody is left to wait for, or after so many seconds. `own`: what it
        needs itself, and so keeps.
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
            if not self._shed(own) and not self._await_end(seen, run, deadline):
                raise failure
            run.check()

    def _shed(self, own: Holder | None) -> bool:
        return any(holder.shed() for holder in tuple(self._holders) if holder is not own)

    def _await_end(self, seen: int, run: Run, deadline: float) -> bool:
        """Whether a run has ended since then. Those that wait here themselves are not waited for."""
        with run.on_cancel(self._wake), self._changed:
            self._waiting += 1
            try:
                while self._ends == seen and not run.is_cancelled:
                    left = deadline - time.monotonic()
                    if left <= 0 or self._under_way <= self._waiting:
                        return False
                    self._changed.wait(min(left, 1.0))
                return True
            finally:
                self._waiting -= 1

    def _wake(self) -> None:
        """By who cancels, who may hold any lock: the one that waits looks by itself every second if this is taken."""
        if self._changed.acquire(blocking=False):
            self._changed.notify_all()
            self._changed.release()


scarcity = Scarcity()
