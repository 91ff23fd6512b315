"""Runs: the runs in progress of a backend. All of its runs go through here, from threads and from event loops."""

from __future__ import annotations

# Not `signal`, which also builds enumerations and takes longer to load than the rest of this module.
import _signal  # type: ignore[import-not-found]
import _thread
import threading
from collections.abc import Callable

from warmcell.core import events
from warmcell.core.errors import BackendUnavailable
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

    def run_blocking(self, work: Callable[[Run], T], run: Run | None = None) -> T:
        """Carries out `work` in the calling thread. With `run`, another thread can cancel it."""
        self._check_open()
        run = run or Run()
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


#: After this many the interrupt is raised at once.
_INSISTENT = 3


class Interrupts:
    """Ctrl-C during a run: the run is cancelled like any other, then the caller gets its KeyboardInterrupt.

    Python raises it between any two bytecodes of the main thread, also between opening a descriptor and owning it, or
    with a lock held. So during a run the interrupt is noted and not raised. `with Interrupts(run):` is for around a
    blocking run, and has an effect only where the interpreter's own handler would raise.
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
        except ValueError:  # not the main thread: interrupts are not raised here
            return

    def __exit__(self, *_: object) -> None:
        if not self._is_installed:
            return
        if _signal.getsignal(_signal.SIGINT) == self._handle_signal:  # a callback may have installed its own meanwhile
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        if self._count:
            raise KeyboardInterrupt

    def _handle_signal(self, number: int, frame: object) -> None:
        """Cancels in a thread: the main thread may hold the lock that cancelling takes."""
        self._count += 1
        if self._count >= _INSISTENT:
            _signal.default_int_handler(number, None)
        _thread.start_new_thread(self._run.cancel, ())
