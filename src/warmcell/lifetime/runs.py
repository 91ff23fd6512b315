"""Runs: the runs in progress of a backend. All of its runs go through here, from threads and from event loops."""

from __future__ import annotations

import threading
from collections.abc import Callable

from warmcell.core import events
from warmcell.core.errors import BackendUnavailable
from warmcell.lifetime import host_program
from warmcell.lifetime.descriptor_pressure import descriptor_pressure
from warmcell.lifetime.fair_semaphore import FairSemaphore
from warmcell.lifetime.interrupts import Interrupts
from warmcell.lifetime.ownership import own_until_exit
from warmcell.lifetime.run import Run, RunCancelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, TypeVar

    T = TypeVar("T")


class Runs:
    """One per backend, created after everything that its runs use: at exit the latest is closed first.

    `most` runs go on at a time; the others wait in order for `queue_timeout` seconds, then raise `BackendBusy`. A fork
    starts with none.
    """

    def __init__(self, name: str, most: int, queue_timeout: float, *, opens_descriptors: bool = True) -> None:
        self._name = name
        #: Whether the end of a run frees descriptors for others.
        self._opens_descriptors = opens_descriptors
        self._queue_timeout = queue_timeout
        self._queue = FairSemaphore(most)
        self._is_closed = False
        self.abandon()
        own_until_exit(self)

    def abandon(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._under_way: set[Run] = set()

    async def run(self, work: Callable[[Run], T], discard: Callable[[T], object] | None = None) -> T:
        """Carries out `work` in a thread. Cancelling the task cancels the run and waits until it has ended; `discard`
        ends what it created nevertheless.
        """
        from warmcell.lifetime.threads import in_thread  # not needed by blocking runs

        self._check_open()
        run = Run()
        await self._queue.acquire_async(self._queue_timeout)
        try:
            return await in_thread(lambda: self._carry_out(run, work), run.cancel, discard)
        finally:
            self._queue.release()

    def run_blocking(self, work: Callable[[Run], T]) -> T:
        """Carries out `work` in the calling thread."""
        self._check_open()
        run = Run()
        with Interrupts(run):
            self._queue.acquire(run, self._queue_timeout)
            try:
                return self._carry_out(run, work)
            finally:
                self._queue.release()

    @property
    def is_busy(self) -> bool:
        return bool(self._under_way)

    @property
    def number_under_way(self) -> int:
        return len(self._under_way)

    def close(self) -> None:
        """Refuses new runs, cancels those in progress and waits until they have ended."""
        with self._changed:
            self._is_closed = True
            under_way = tuple(self._under_way)
        for run in under_way:
            run.cancel()
        with self._changed:
            while self._under_way:
                self._changed.wait()

    def _carry_out(self, run: Run, work: Callable[[Run], T]) -> T:
        self._begin(run)
        try:
            if run.is_cancelled:
                run.check()
            if events.listeners and (subject := events.current_run()):
                events.emit("run.started", subject, {})
            return work(run)
        except RunCancelled:
            # A caller that cancelled sees its own cancellation; for any other it was `close`.
            raise BackendUnavailable(f"the {self._name} backend was closed during the run") from None
        except RuntimeError as error:
            refusal = host_program.subinterpreter_refusal(error)
            if refusal is None:
                raise
            raise refusal from None
        finally:
            self._end(run)

    def _begin(self, run: Run) -> None:
        with self._lock:
            if self._is_closed:
                self._refuse()
            self._under_way.add(run)
        if self._opens_descriptors:
            descriptor_pressure.run_started()

    def _end(self, run: Run) -> None:
        if self._opens_descriptors:
            descriptor_pressure.run_ended()
        with self._lock:
            self._under_way.discard(run)
            if self._is_closed:
                self._changed.notify_all()

    def _check_open(self) -> None:
        host_program.check()
        if self._is_closed:
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise BackendUnavailable(f"the {self._name} backend was closed", hint="create a new one")
