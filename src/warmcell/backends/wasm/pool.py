"""The workers of this program: started on demand, reused after clean runs, otherwise discarded.

All backends and sandboxes share one pool. A confined worker gets its mounts once and then serves only runs with exactly
those; every run has its own Store.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress

from warmcell.backends.wasm.channel import WorkerDied, WorkerTimedOut
from warmcell.backends.wasm.launcher import worker_launcher
from warmcell.backends.wasm.pending_request import PendingRequest, RequestLimits
from warmcell.backends.wasm.run_request import Mounts
from warmcell.backends.wasm.worker_handle import WorkerHandle, slots_for
from warmcell.core.errors import ExecutionFailed, SandboxError
from warmcell.core.late_log import LateLog
from warmcell.core.records import dataclass
from warmcell.guest.wasm.protocol import ProtocolViolation
from warmcell.lifetime.descriptor_pressure import descriptor_pressure
from warmcell.lifetime.descriptors import shortage_from_message
from warmcell.lifetime.fair_semaphore import FairSemaphore
from warmcell.lifetime.host_program import start_daemon
from warmcell.lifetime.ownership import own_until_exit
from warmcell.lifetime.run import Run
from warmcell.runner.cell import CellLost

_log = LateLog(__name__)
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

    def matches(self, worker: WorkerHandle) -> bool:
        mounts = self.effective_mounts
        return (worker.mounts == mounts or worker.can_mount(mounts)) and (worker.is_clean or not self.needs_clean)

    @property
    def effective_mounts(self) -> Mounts:
        """Empty without a cage: then all workers see everything."""
        return self.mounts if worker_launcher().is_confining else ()


class WorkerUnusable(Exception):
    """The worker died before it received any guest code, so another one can take its place."""


class WorkerPool:
    """Thread-safe. In a fork it is empty: the workers belong to the parent."""

    def __init__(self, most: int = MOST_WORKERS) -> None:
        self._most = most
        self._slots = FairSemaphore(most)
        self.abandon()
        own_until_exit(self)
        descriptor_pressure.register(self)

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[WorkerHandle] = []
        self._all: set[WorkerHandle] = set()
        self._users = 0
        self._retiring: threading.Thread | None = None
        self._is_making_spare = False
        self._spare_done = threading.Event()
        self._spare_done.set()
        self._is_closing = threading.Event()

    def add_user(self) -> None:
        """Called by each backend or sandbox, which calls `remove_user` when it closes."""
        with self._lock:
            self._users += 1
            self._is_closing.clear()

    def remove_user(self, mounts: Collection[Mounts] = ()) -> None:
        """Ends idle workers with these mounts; after the last user, all but a spare."""
        with self._lock:
            self._users = max(0, self._users - 1)
            is_last = self._users == 0
            gone = [worker for worker in self._idle if worker.mounts in mounts or (is_last and not worker.is_spare)]
            self._forget(gone)
            is_empty = is_last and not self._all
        _dispose(gone)
        if is_empty:
            worker_launcher().release_idle()

    @property
    def pids(self) -> list[int]:
        """The process ids of all living workers."""
        with self._lock:
            return [worker.pid for worker in self._all if worker.is_started]

    def acquire(self, query: WorkerQuery, run: Run, queue_timeout: float) -> WorkerHandle:
        """An idle or new worker, ready for requests. Waits while all are busy, then raises `BackendBusy`.

        A caller that already holds a worker must pass 0: two such callers could wait for each other forever.
        """
        self._slots.acquire(run, queue_timeout)
        try:
            if (ready := self._take_ready(query)) is not None:
                return ready
            return descriptor_pressure.retry(
                lambda: self._prepare(self._start_process(self._take_idle(query), query), query),
                run,
                queue_timeout,
                own=self,
            )
        except BaseException:
            self._slots.release()
            raise

    def start_ahead(self) -> None:
        """Starts a worker early: it loads while the calling program loads the rest."""
        with suppress(SandboxError):  # the first run will report it
            worker = self._make(WorkerQuery())
            worker.idle_since = time.monotonic()
            with self._lock:
                self._idle.append(worker)

    def shed(self) -> bool:
        """Ends the idle workers."""
        with self._lock:
            gone = tuple(self._idle)
            self._forget(gone)
        _dispose(gone)
        return bool(gone)

    def release(self, worker: WorkerHandle, *, is_reusable: bool) -> None:
        with self._lock:
            is_needed = self._users > 0 or worker.is_spare
            is_kept = is_reusable and worker in self._all and not worker.is_killed and is_needed
            if is_kept:
                worker.idle_since = time.monotonic()
                self._idle.append(worker)
                if self._retiring is None:
                    self._retire_later()
            else:
                self._forget([worker])
        self._slots.release()
        if not is_kept:
            worker.dispose()

    def claim_spare(self) -> bool:
        """Whether the caller should make a spare worker. If so, it calls `finish_spare` afterwards."""
        with self._lock:
            has_one = self._is_making_spare or any(worker.is_spare for worker in self._idle)
            is_needed = worker_launcher().is_confining and self._users > 0 and not has_one
            self._is_making_spare = self._is_making_spare or is_needed
            if is_needed:
                self._spare_done.clear()
            return is_needed

    def is_closing_soon(self) -> bool:
        """Waits a moment before a spare is made."""
        return self._is_closing.wait(_SPARE_DELAY_SECONDS)

    def finish_spare(self) -> None:
        self._is_making_spare = False
        self._spare_done.set()

    def close(self) -> None:
        """Called at exit, when backends have ended their runs. Kills the workers that are still in use."""
        self._is_closing.set()
        # A spare that is just being started is not in the lists yet, and its cage would outlive us.
        self._spare_done.wait(_START_SECONDS)
        with self._lock:
            idle, busy = list(self._idle), self._all - set(self._idle)
            self._forget([*idle, *busy])
        for worker in busy:
            worker.kill()
        _dispose(idle)
        worker_launcher().release_idle()

    def _take_ready(self, query: WorkerQuery) -> WorkerHandle | None:
        """An idle worker that can run this at once: the fast path.

        Whether it is alive is asked without the lock: the call gives up the interpreter lock, and all other threads
        would wait for both.
        """
        if query.needs_new or query.needs_clean:
            return None
        mounts, key = query.effective_mounts, query.module_key
        with self._lock:
            suitable = (each for each in reversed(self._idle) if key in each.loaded and each.mounts == mounts)
            worker = next(suitable, None)
            if worker is None:
                return None
            self._idle.remove(worker)
        if worker.is_waiting():
            return worker
        self._drop(worker)
        return None

    def _take_idle(self, query: WorkerQuery) -> WorkerHandle | None:
        dead = []
        with self._lock:
            while (worker := self._best(query)) is not None:
                self._idle.remove(worker)
                if not worker.is_ready or worker.is_waiting():
                    break
                dead.append(worker)
            self._forget(dead)
        _dispose(dead)
        return worker

    def _best(self, query: WorkerQuery) -> WorkerHandle | None:
        if query.needs_new:
            return None
        # The most recently used one is the warmest; the others can then be retired.
        matching = [worker for worker in reversed(self._idle) if query.matches(worker)]
        mounts, key = query.effective_mounts, query.module_key
        return min(matching, key=lambda worker: (worker.mounts != mounts, key not in worker.loaded), default=None)

    def _start_process(self, worker: WorkerHandle | None, query: WorkerQuery) -> WorkerHandle:
        """The worker, or a new one if it is None, with its process running."""
        for _ in range(_ATTEMPTS):
            worker = worker or self._make(query)
            try:
                if not worker.is_started:
                    worker.start()
                return worker
            except BaseException as error:
                self._drop(worker)
                worker_launcher().release_idle()
                if not isinstance(error, CellLost):
                    raise
                worker = None  # the zygote was dying: another one takes its place
        raise ExecutionFailed(f"{_ATTEMPTS} cages for WASM workers died before they could be used")

    def _prepare(self, worker: WorkerHandle, query: WorkerQuery) -> WorkerHandle:
        """Mounts the directories and waits until the worker can take requests."""
        try:
            if worker.mounts != query.effective_mounts:
                worker.mount(query.effective_mounts)
            if not worker.is_ready:
                _await_ready(worker)
        except BaseException as error:
            self._drop(worker)
            if isinstance(error, CellLost):
                raise WorkerUnusable from None
            raise
        return worker

    def _drop(self, worker: WorkerHandle) -> None:
        with self._lock:
            self._forget([worker])
        worker.dispose()

    def _make(self, query: WorkerQuery) -> WorkerHandle:
        worker = WorkerHandle(slots_for(query.effective_mounts))
        with self._lock:
            self._all.add(worker)
            surplus = self._idle[: max(0, len(self._all) - self._most)]
            self._forget(surplus)
        _dispose(surplus)
        return worker

    def _forget(self, workers: Iterable[WorkerHandle]) -> None:
        for worker in workers:
            self._all.discard(worker)
            if worker in self._idle:
                self._idle.remove(worker)

    def _retire_later(self) -> None:
        with suppress(SandboxError):  # cannot start a thread: they stay until the program exits
            self._retiring = start_daemon(self._retire, name="warmcell-wasm-idle")

    def _retire(self) -> None:
        """Ends workers that were idle for too long; returns when none is idle."""
        while True:
            time.sleep(_IDLE_SECONDS / 4)
            with self._lock:
                oldest = time.monotonic() - _IDLE_SECONDS
                is_kept = self._users > 0
                stale = [
                    worker for worker in self._idle if worker.idle_since < oldest and not (is_kept and worker.is_spare)
                ]
                self._forget(stale)
                is_over = not self._idle
                is_empty = not self._all
                if is_over:
                    self._retiring = None
            _dispose(stale)
            if is_empty:
                worker_launcher().release_idle()
            if is_over:
                return


@functools.cache
def program_pool() -> WorkerPool:
    """The one pool of this program."""
    return WorkerPool()


def _dispose(workers: Iterable[WorkerHandle]) -> None:
    for worker in workers:
        worker.dispose()


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
