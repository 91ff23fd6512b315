"""Runs: the runs in progress of a backend, started from threads and from event loops."""

from __future__ import annotations

# Not `signal`, which builds enumerations and takes longer to load than the rest of this module.
import _signal  # type: ignore[import-not-found]
import _thread
import threading
from collections.abc import Callable

from warmcell.core import events
from warmcell.core.errors import BackendBusy, BackendUnavailable
from warmcell.lifetime import host_program
from warmcell.lifetime.descriptor_pressure import descriptor_pressure
from warmcell.lifetime.fair_semaphore import FairSemaphore
from warmcell.lifetime.ownership import own_until_exit
from warmcell.lifetime.run import Run, RunCancelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, TypeVar

    T = TypeVar("T")


class Runs:
    """One per backend. Create it after everything that its runs use: at exit the latest is closed first.

    `most` runs are in progress at a time; others wait in order, and raise `BackendBusy` after `queue_timeout` seconds.
    A fork starts with none.
    """

    #: How many seconds `close` waits at most. Set while a run is in code of its caller, which may never return.
    patience: float | None = None

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
        self._in_progress: set[Run] = set()

    async def run(self, work: Callable[[Run], T], discard: Callable[[T], object] | None = None) -> T:
        """Does `work` in a thread. Cancelling the task cancels the run and waits for its end. `discard` is called with
        a result that the cancelled task does not get.
        """
        from warmcell.lifetime.threads import in_thread  # not needed for blocking runs

        self._check_open()
        run = Run()
        try:
            await self._queue.acquire_async(self._queue_timeout)
        except BackendBusy:
            self._check_open()
            raise
        try:
            return await in_thread(lambda: self._carry_out(run, work), run.cancel, discard)
        finally:
            self._queue.release()

    def run_blocking(self, work: Callable[[Run], T], run: Run | None = None) -> T:
        """Does `work` in the calling thread. With `run`, another thread can cancel it."""
        self._check_open()
        run = run or Run()
        with Interrupts(run):
            try:
                self._queue.acquire(run, self._queue_timeout)
            except BackendBusy:
                self._check_open()
                raise
            try:
                return self._carry_out(run, work)
            finally:
                self._queue.release()

    @property
    def is_busy(self) -> bool:
        return bool(self._in_progress)

    @property
    def number_in_progress(self) -> int:
        return len(self._in_progress)

    def close(self) -> None:
        """Refuses new runs, cancels those in progress and waits until they have ended, or as long as `patience` says:
        then `is_busy` is still true, and runs that wait for the one in progress are refused now.
        """
        with self._changed:
            self._is_closed = True
            runs = tuple(self._in_progress)
        for run in runs:
            run.cancel()
        with self._changed:
            has_ended = self._changed.wait_for(lambda: not self._in_progress, self.patience)
        if not has_ended:
            self._queue.close()

    def _carry_out(self, run: Run, work: Callable[[Run], T]) -> T:
        self._begin(run)
        try:
            if run.is_cancelled:
                run.check()
            if events.listeners and (subject := events.current_run()):
                events.emit("run.started", subject, {})
            return work(run)
        except RunCancelled:
            # A caller that cancelled the run raises its own error, so others see this only after `close`.
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
            self._in_progress.add(run)
        if self._opens_descriptors:
            descriptor_pressure.run_started()

    def _end(self, run: Run) -> None:
        if self._opens_descriptors:
            descriptor_pressure.run_ended()
        with self._lock:
            self._in_progress.discard(run)
            if self._is_closed:
                self._changed.notify_all()

    def _check_open(self) -> None:
        host_program.check()
        if self._is_closed:
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise BackendUnavailable(f"the {self._name} backend was closed", hint="create a new one")


#: This interrupt during one run is raised at once.
_INSISTENT = 3


class Interrupts:
    """Makes Ctrl-C cancel a blocking run, and raises KeyboardInterrupt when the run has ended.

    By default Python raises it between any two bytecodes of the main thread: also between opening a descriptor and
    owning it, or with a lock held. Has no effect if the host program has installed a handler of its own.
    """

    __slots__ = ("_count", "_is_installed", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._count = 0
        self._is_installed = False

    def __enter__(self) -> None:
        if _signal.getsignal(_signal.SIGINT) is not _signal.default_int_handler:
            return
        try:
            _signal.signal(_signal.SIGINT, self._handle_signal)
            self._is_installed = True
        except ValueError:  # not the main thread, where interrupts are never raised
            return

    def __exit__(self, *_: object) -> None:
        if not self._is_installed:
            return
        if _signal.getsignal(_signal.SIGINT) == self._handle_signal:  # unless a callback has installed its own
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        if self._count:
            raise KeyboardInterrupt

    def _handle_signal(self, number: int, frame: object) -> None:
        """Cancels in a thread: the main thread may hold the lock that cancelling takes."""
        self._count += 1
        if self._count >= _INSISTENT:
            _signal.default_int_handler(number, None)
        _thread.start_new_thread(self._run.cancel, ())
