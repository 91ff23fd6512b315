"""The workers of this program: started on demand, reused after clean runs, otherwise discarded.

All backends and sandboxes share one pool. A confined worker gets its mounts once and then serves only runs with exactly
those; every run has its own Store.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from warmcell.backends.wasm.channel import WorkerDied, WorkerTimedOut
from warmcell.backends.wasm.launcher import worker_launcher
from warmcell.backends.wasm.run_request import Mounts
from warmcell.backends.wasm.worker_handle import PendingRequest, RequestLimits, WorkerHandle, slots_for
from warmcell.core.errors import BackendUnavailable, ExecutionFailed, SandboxError
from warmcell.core.light import LateLog
from warmcell.core.records import dataclass
from warmcell.guest.wasm.protocol import ProtocolViolation
from warmcell.lifetime.descriptor_pressure import descriptor_pressure
from warmcell.lifetime.descriptors import shortage_from_message
from warmcell.lifetime.fair_semaphore import FairSemaphore
from warmcell.lifetime.ownership import own_until_exit
from warmcell.lifetime.run import Run, RunCancelled
from warmcell.pool.supply import Supply
from warmcell.runner.cell import CellLost
from warmcell.runner.outcome import replacement_reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

_log = LateLog(__name__)
#: The key of workers that are unused and have no mounts.
_SPARE = None
#: For the whole program; each backend has a lower limit.
MOST_WORKERS = 256
_IDLE_SECONDS = 60.0
_START_SECONDS = 30.0
_START_MEMORY = 1 << 30
#: How many zygotes may turn out to be dying.
_ATTEMPTS = 3
#: A program that runs one command and exits needs no spare worker.
_SPARE_DELAY_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class WorkerQuery:
    """Which worker is suitable. One that has loaded `module_key` is preferred."""

    module_key: str = ""
    mounts: Mounts = ()
    needs_clean: bool = False
    needs_new: bool = False
    #: The directories exist only for this run, so the worker ends with it.
    is_for_one_run: bool = False

    def rank(self, worker: WorkerHandle) -> int | None:
        """The lower, the more suitable; None if it is not."""
        if self.needs_clean and not worker.is_clean:
            return None
        has_mounts = worker.mounts == self.effective_mounts
        if not has_mounts and not worker.can_mount(self.effective_mounts):
            return None
        return (self.module_key not in worker.loaded) + (0 if has_mounts else 2)

    @property
    def effective_mounts(self) -> Mounts:
        """Empty without a cage: then all workers see everything."""
        return self.mounts if worker_launcher().is_confining else ()


class WorkerUnusable(Exception):
    """The worker died before it received any guest code, so another one can take its place."""


class WorkerPool(Supply[Mounts | None, WorkerHandle]):
    """By mounts; `_SPARE` for workers that can still get any. Keeps those used within the last minute, and a spare.

    In a fork it is empty: the workers belong to the parent.
    """

    check_seconds = _IDLE_SECONDS / 4

    def __init__(self, most: int = MOST_WORKERS) -> None:
        self._slots = FairSemaphore(most)
        #: Backends and sandboxes. A fork has copies of them, which it uses and closes.
        self._users = 0
        super().__init__(0, most, most)
        own_until_exit(self)
        descriptor_pressure.register(self)

    def abandon(self) -> None:
        super().abandon()
        #: Set if a spare is wanted.
        self._prepare_spare: Callable[[Lease], None] | None = None
        self._is_closing = threading.Event()

    def room(self) -> int:
        return self.total - len(self.in_use)

    def lower_targets(self, now: float) -> None:
        for key, demand in self.demands.items():
            has_spare = key is _SPARE and (self._prepare_spare is not None or (self._users and demand.ready))
            in_use = sum(item.since > now - _IDLE_SECONDS for item in demand.ready)
            demand.target = max(1, in_use) if has_spare else in_use

    def add_user(self) -> None:
        """Called by each backend or sandbox, which calls `remove_user` when it closes."""
        with self.lock:
            self._users += 1
            self._is_closing.clear()

    def remove_user(self, mounts: Collection[Mounts] = ()) -> None:
        """Ends idle workers with these mounts; after the last user, all but a spare."""
        with self.lock:
            self._users = max(0, self._users - 1)
            is_last = self._users == 0
            gone = self.remove(lambda item: item.key in mounts or (is_last and item.key is not _SPARE))
        self._drop(*gone)
        if is_last:
            self.end([])

    def _living(self) -> list[WorkerHandle]:
        with self.lock:
            return [*self.ready(), *self.in_use]

    @property
    def pids(self) -> list[int]:
        """The process ids of all living workers."""
        return [worker.pid for worker in self._living() if worker.is_started]

    def acquire(self, query: WorkerQuery, run: Run, queue_timeout: float) -> WorkerHandle:
        """An idle or new worker, ready for requests. Waits while all are busy, then raises `BackendBusy`.

        A caller that already holds a worker must pass 0: two such callers could wait for each other forever.
        """
        self._slots.acquire(run, queue_timeout)
        try:
            if (ready := self._take_ready(query)) is not None:
                return ready
            return descriptor_pressure.retry(lambda: self._find(query, run), run, queue_timeout, own=self)
        except BaseException:
            self._slots.release()
            raise

    def release(self, worker: WorkerHandle, *, is_reusable: bool) -> None:
        with self.lock:
            key = _SPARE if worker.is_spare else worker.mounts
            is_needed = self._users > 0 or key is _SPARE
            is_kept = is_reusable and not worker.is_killed and is_needed
            is_kept = is_kept and self.give_back(worker, key, time.monotonic())
            if not is_kept:
                self.forget(worker)
        self._slots.release()
        if not is_kept:
            worker.dispose()
        elif self.maker is None:
            self.start_maker()

    def start_ahead(self) -> None:
        """Starts a worker early: it loads while the calling program loads the rest."""
        with suppress(SandboxError, CellLost):  # the first run will report it
            worker = self._make(WorkerQuery(), Run())
            self.give_back(worker, _SPARE if worker.is_spare else worker.mounts, time.monotonic())

    def keep_spare(self, prepare: Callable[[Lease], None]) -> None:
        """Has a thread make and prepare an unused worker, unless there is one or it has no users.

        Called after a run has ended.
        """
        with self.lock:
            spares = self.demands.get(_SPARE)
            if (spares and spares.count) or not self._users or not worker_launcher().is_confining:
                return
            self.use(_SPARE, time.monotonic())
            self._prepare_spare = prepare
            self.changed.notify()
        self.start_maker()

    def make_ahead(self, key: Mounts | None) -> None:
        prepare, self._prepare_spare = self._prepare_spare, None
        if prepare is None or self._is_closing.wait(_SPARE_DELAY_SECONDS):
            return
        try:
            with Lease(self, WorkerQuery(needs_new=True), Run(), queue_timeout=0) as lease:
                prepare(lease)
                lease.is_reusable = True
        except (SandboxError, WorkerUnusable, OSError) as error:
            _log.debug("no spare WASM worker: %s", error)  # the run that needs a worker will report the same error

    def end(self, things: list[WorkerHandle]) -> None:
        """Without a worker, nothing is kept for further ones either."""
        self._drop(*things)
        if not self._living():
            worker_launcher().release_idle()

    def close(self) -> None:
        """Called at exit, when backends have ended their runs. Kills the workers that are still in use."""
        self._is_closing.set()
        # A spare that is just being started is not leased yet, and its cage would outlive us.
        self.stop_maker(_START_SECONDS)
        with self.lock:
            idle, busy = self.clear(), list(self.in_use)
            for worker in busy:
                self.forget(worker)
            self.is_closed = False  # it may be used again
        for worker in busy:
            worker.kill()
        self.end(idle)

    def _take_ready(self, query: WorkerQuery) -> WorkerHandle | None:
        """An idle worker that can run this at once: the fast path."""
        if query.needs_new or query.needs_clean:
            return None
        mounts = query.effective_mounts
        with self.lock:
            demand = self.demands.get(mounts)
            if demand is None or not demand.ready or query.module_key not in demand.ready[-1].thing.loaded:
                return None
            worker = self._lease(demand.ready.pop())
        if worker.is_waiting():
            return worker
        self._drop(worker)
        return None

    def _find(self, query: WorkerQuery, run: Run) -> WorkerHandle:
        """An idle worker or a new one, with the directories mounted, that can take requests."""
        for _ in range(_ATTEMPTS):
            worker = None
            try:
                worker = self._take(query) or self._make(query, run)
                if not worker.is_ready or worker.mounts != query.effective_mounts:
                    with run.on_cancel(worker.kill):
                        self._complete(worker, query.effective_mounts, run)
                return worker
            except BaseException as error:
                if worker is not None:
                    self._drop(worker)
                if run.is_cancelled and isinstance(error, (SandboxError, CellLost)):  # it was killed
                    raise RunCancelled from None
                if not isinstance(error, CellLost):  # otherwise the zygote was dying: another one takes its place
                    raise
        raise ExecutionFailed(f"{_ATTEMPTS} cages for WASM workers died before they could be used")

    @staticmethod
    def _complete(worker: WorkerHandle, mounts: Mounts, run: Run) -> None:
        if not worker.is_started:
            worker.start(run)
        if worker.mounts != mounts:
            worker.mount(mounts)
        if not worker.is_ready:
            _await_ready(worker)

    def _take(self, query: WorkerQuery) -> WorkerHandle | None:
        """The best idle worker. The most recently used one is the warmest; the others can then be retired.

        Whether it is alive is asked without the lock: the call gives up the interpreter lock, and all other threads
        would wait for both.
        """
        keys = () if query.needs_new else (query.effective_mounts, _SPARE)
        while (worker := self.lease_best(keys, query.rank)) is not None:
            if not worker.is_ready or worker.is_waiting():
                return worker
            self._drop(worker)
        return None

    def _make(self, query: WorkerQuery, run: Run) -> WorkerHandle:
        worker = WorkerHandle(run, slots_for(query.effective_mounts))
        self.add_leased(query.effective_mounts, worker)
        self._drop(*self.surplus(time.monotonic()))
        return worker

    def _drop(self, *workers: WorkerHandle) -> None:
        for worker in workers:
            self.forget(worker)
            worker.dispose()


@functools.cache
def program_pool() -> WorkerPool:
    """The one pool of this program."""
    return WorkerPool()


def _await_ready(worker: WorkerHandle) -> None:
    """Waits for the first message of a new worker, which needs a few hundredths of a second."""
    try:
        frame = PendingRequest(worker, RequestLimits(_START_SECONDS, _START_MEMORY)).wait()
        if frame.message.get("op") != "ready":
            raise ProtocolViolation("unexpected first message")
    except (WorkerDied, WorkerTimedOut, ProtocolViolation) as error:
        if not worker.is_killed:  # otherwise the program is exiting
            _log.warning("a WASM worker did not start: %s", worker.log() or error)
        hint = "see the log of warmcell.backends.wasm; a usual cause is the process limit (`ulimit -u`)"
        failure = ExecutionFailed("a WASM worker did not start", hint=hint)
        raise shortage_from_message(worker.log(), "start a WASM worker") or failure from None
    worker.is_ready = True


class Lease:
    """Holds a worker for one run and always releases it. The pool reuses it only if `is_reusable` was set.

    Cancelling the run kills the worker while the lease holds it, and does not affect it afterwards.
    """

    def __init__(self, pool: WorkerPool, query: WorkerQuery, run: Run, queue_timeout: float) -> None:
        self._pool, self._query = pool, query
        self._run, self._queue_timeout = run, queue_timeout
        self.is_reusable = False
        self._acquire(query)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._release(self.is_reusable)

    def swap_for_clean(self) -> None:
        """Replaces the worker by one that has never had any guest code."""
        self._release(is_reusable=True)
        self._acquire(WorkerQuery(mounts=self._query.mounts, needs_clean=True))

    def _acquire(self, query: WorkerQuery) -> None:
        self.worker = self._pool.acquire(query, self._run, self._queue_timeout)
        self._is_held = True
        self._run.add_cancel_hook(self.worker.kill)

    def _release(self, is_reusable: bool) -> None:
        if not self._is_held:
            return
        self._is_held = False
        # First: a late cancellation must not kill the worker under its next user.
        self._run.remove_cancel_hook(self.worker.kill)
        is_last = self._query.is_for_one_run and bool(self.worker.mounts)
        self._pool.release(self.worker, is_reusable=is_reusable and not is_last)

    def send(self, data: bytes, descriptors: Sequence[int] = (), *, seconds: float) -> None:
        """Sends encoded frames. Raises `WorkerUnusable` if the worker died by itself before it could read them."""
        try:
            self.worker.channel.send_encoded(data, descriptors, timeout=seconds)
        except WorkerDied:
            if self.worker.is_killed:
                raise
            raise WorkerUnusable from None

    def explain_death(self, what: str) -> Exception:
        """The error for a dead worker. Disposes of it to learn its exit status."""
        if self._run.is_cancelled:
            return RunCancelled()
        was_killed = self.worker.is_killed
        status = self.worker.dispose()
        if was_killed:
            return BackendUnavailable("the WASM workers were shut down during the run")
        if self.worker.replaced:
            return ExecutionFailed(f"ended: {replacement_reason(self.worker.replaced)}", hint="run it again")
        log_text = self.worker.log()
        if log_text:
            _log.warning("a WASM worker died while %s: %s", what, log_text)
        if (shortage := shortage_from_message(log_text, f"continue {what}")) is not None:
            return shortage
        ended = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        return ExecutionFailed(f"the WASM worker died ({ended}) while {what}", hint="other runs are not affected")
