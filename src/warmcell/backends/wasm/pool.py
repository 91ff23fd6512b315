"""Workers that wait for work: grown on demand, reused after clean runs, thrown away after anything else."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

from warmcell.backends.wasm.cancellation import Cancellation, RunCancelled
from warmcell.backends.wasm.conversation import await_ready
from warmcell.backends.wasm.launcher import launcher
from warmcell.backends.wasm.worker import Worker
from warmcell.core.errors import BackendUnavailable, ExecutionFailed

DEFAULT_MOST_WORKERS = 32
_IDLE_SECONDS = 60.0
#: How often a caller who waits for a worker looks whether it still has to.
_CANCELLATION_SECONDS = 0.1
Paths = tuple[tuple[str, ...], tuple[str, ...]]
NO_PATHS: Paths = ((), ())


class AllBusy(Exception):
    """Every worker that may exist is running something."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    prefer: str
    paths: Paths
    needs_clean: bool
    may_wait: bool

    def fits(self, worker: Worker) -> bool:
        return worker.paths == self.paths and (worker.is_clean or not self.needs_clean)


def _kill_all(workers: Iterable[Worker]) -> None:
    for worker in list(workers):
        worker.kill()


class WorkerPool:
    """Thread-safe. A lease is one worker for one thread; `release` says whether it may be used again."""

    def __init__(self, most: int = DEFAULT_MOST_WORKERS) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._count = 0
        self._is_closed = False
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _kill_all, self._all)

    def lease(
        self,
        prefer: str = "",
        paths: Paths = NO_PATHS,
        *,
        needs_clean: bool = False,
        may_wait: bool = True,
        cancellation: Cancellation | None = None,
    ) -> Worker:
        """An idle worker, one that has `prefer` loaded if possible, else a new one.

        Where all are busy it waits, or raises `AllBusy` when it may not: a caller who holds a worker while waiting for
        another could wait for ever.
        """
        wanted = _Wanted(prefer, paths if launcher().confines_paths else NO_PATHS, needs_clean, may_wait)
        worker = self._take(wanted, cancellation or Cancellation())
        try:
            await_ready(worker)
        except BaseException:
            self.release(worker, is_reusable=False)
            raise
        return worker

    def release(self, worker: Worker, *, is_reusable: bool) -> None:
        with self._changed:
            is_kept = is_reusable and not worker.is_killed and not self._is_closed and worker in self._all
            if is_kept:
                worker.idle_since = time.monotonic()
                self._idle.append(worker)
            retired = self._retire_stale() if is_kept else [worker]
            self._forget(retired)
        for each in retired:
            each.dispose()

    def close(self) -> None:
        """Kills every worker, busy ones too. Leases that are out see their worker die."""
        with self._changed:
            self._is_closed = True
            idle, self._idle = self._idle, []
            busy = self._all - set(idle)
            self._forget(idle)
            self._changed.notify_all()
        for worker in busy:
            worker.kill()
        for worker in idle:
            worker.dispose()
        launcher().rest()

    @property
    def pids(self) -> list[int]:
        """Of all workers that are alive."""
        with self._changed:
            return [worker.pid for worker in self._all]

    def _take(self, wanted: _Wanted, cancellation: Cancellation) -> Worker:
        with self._changed:
            while True:
                self._check_usable()
                cancellation.check()
                worker = self._pick(wanted)
                if worker is not None:
                    return worker
                if self._count < self._most or self._make_room():
                    self._count += 1
                    break
                if not wanted.may_wait:
                    raise AllBusy
                self._changed.wait(_CANCELLATION_SECONDS)
        return self._start(wanted.paths)

    def _start(self, paths: Paths) -> Worker:
        try:
            worker = Worker(paths)
        except BaseException:
            with self._changed:
                self._count -= 1
                self._changed.notify()
            raise
        with self._changed:
            self._all.add(worker)
        return worker

    def _pick(self, wanted: _Wanted) -> Worker | None:
        # The most recently used one is the warmest; the others get a chance to become stale.
        fitting = None
        for worker in reversed(self._idle):
            if wanted.fits(worker):
                fitting = fitting or worker
                if wanted.prefer in worker.loaded:
                    fitting = worker
                    break
        if fitting is not None:
            self._idle.remove(fitting)
        return fitting

    def _make_room(self) -> bool:
        """Gives up an idle worker that does not fit, so that one can be made that does."""
        if not self._idle:
            return False
        worker = self._idle.pop(0)
        self._forget([worker])
        worker.dispose()
        return True

    def _retire_stale(self) -> list[Worker]:
        oldest = time.monotonic() - _IDLE_SECONDS
        if self._idle[0].idle_since >= oldest:
            return []
        stale = [worker for worker in self._idle[:-1] if worker.idle_since < oldest]
        self._idle = [worker for worker in self._idle if worker not in stale]
        return stale

    def _forget(self, workers: Iterable[Worker]) -> None:
        for worker in workers:
            if worker in self._all:
                self._all.discard(worker)
                self._count -= 1
        self._changed.notify()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise BackendUnavailable("the WASM backend was closed", hint="make a new one")
        if os.getpid() != self._owner:
            # After a fork the workers belong to the parent: two processes on one socket would mix up their runs.
            self._idle, self._count, self._owner = [], 0, os.getpid()
            self._all.clear()


class Lease:
    """Use as a context manager. The worker goes back to the pool only when `is_reusable` was set."""

    def __init__(
        self,
        pool: WorkerPool,
        prefer: str = "",
        paths: Paths = NO_PATHS,
        *,
        needs_clean: bool = False,
        may_wait: bool = True,
        cancellation: Cancellation | None = None,
    ) -> None:
        self._pool = pool
        self._paths = paths
        self._cancellation = cancellation or Cancellation()
        self.is_reusable = False
        self.worker = pool.lease(
            prefer, paths, needs_clean=needs_clean, may_wait=may_wait, cancellation=self._cancellation
        )
        self._cancellation.attach(self.worker)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cancellation.detach()
        self._pool.release(self.worker, is_reusable=self.is_reusable)

    def swap_for_clean(self) -> None:
        """Another worker, in which nothing of any guest has ever been."""
        self._cancellation.detach()
        self._pool.release(self.worker, is_reusable=True)
        self.worker = self._pool.lease(paths=self._paths, needs_clean=True, cancellation=self._cancellation)
        self._cancellation.attach(self.worker)

    def explain_death(self, what: str) -> Exception:
        """Why the worker is gone. Disposes of it, so that its status is known."""
        if self._cancellation.is_cancelled:
            return RunCancelled()
        was_killed = self.worker.is_killed
        status = self.worker.dispose()
        if was_killed:
            return BackendUnavailable("the WASM backend was closed during the run")
        ended = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        words = f": {self.worker.log()}" if self.worker.log() else ""
        return ExecutionFailed(
            f"the WASM worker died ({ended}) while {what}{words}", hint="other runs are not affected"
        )
