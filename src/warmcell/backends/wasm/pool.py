"""The workers of this program: started on demand, reused after clean runs, thrown away after anything else.

There is one pool for all backends and sandboxes. A worker that is confined was started for certain directories and is
only ever handed out for exactly those; every run in it has a Store of its own.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from warmcell.backends.wasm.conversation import Bounds, Conversation
from warmcell.backends.wasm.frames import Overstayed, ProtocolViolation, WorkerDied
from warmcell.backends.wasm.launcher import Directories, launcher
from warmcell.backends.wasm.worker import Worker
from warmcell.core.errors import BackendUnavailable, ExecutionFailed
from warmcell.lifetime.fair_queue import FairQueue
from warmcell.lifetime.ownership import Lock, own_until_exit
from warmcell.lifetime.run import Run, RunCancelled

_log = logging.getLogger(__name__)
#: Of the program as a whole; each backend allows itself fewer.
MOST_WORKERS = 256
_IDLE_SECONDS = 60.0
_START_SECONDS = 30.0
_START_MEMORY = 1 << 30


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which worker will do: one that has `prefer` loaded if possible."""

    prefer: str = ""
    directories: Directories = ()
    needs_clean: bool = False

    def fits(self, worker: Worker) -> bool:
        is_confined_alike = worker.directories == self.directories or not launcher().confines
        return is_confined_alike and (worker.is_clean or not self.needs_clean)


class WorkerPool:
    """Thread-safe. In a fork it is empty; the workers stay the parent's."""

    def __init__(self, most: int = MOST_WORKERS) -> None:
        self._most = most
        self._places = FairQueue(most)
        self._lock = Lock()
        self.abandon()
        own_until_exit(self)

    def abandon(self) -> None:
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._users = 0
        self._retiring: threading.Thread | None = None

    def join(self) -> None:
        """Another backend or sandbox uses the pool; it says `leave` in the end."""
        with self._lock:
            self._users += 1

    def leave(self, directories: Collection[Directories] = ()) -> None:
        """Workers that wait for runs in these directories end now; with the last user all that wait do."""
        with self._lock:
            self._users = max(0, self._users - 1)
            is_last = self._users == 0
            gone = [worker for worker in self._idle if is_last or worker.directories in directories]
            self._forget(gone)
        _dispose(gone)
        if is_last:
            launcher().rest()

    @property
    def pids(self) -> list[int]:
        """Of all workers that are alive."""
        with self._lock:
            return [worker.pid for worker in self._all]

    def take(self, wanted: Wanted, run: Run, queue_timeout: float) -> Worker:
        """An idle worker or a new one, ready for requests. Where all are busy it waits: `BackendBusy` in the end.

        A caller who holds a worker while waiting for another gives 0, for it could wait for ever.
        """
        self._places.enter(run, queue_timeout)
        try:
            return self._take_idle(wanted) or self._start(wanted.directories)
        except BaseException:
            self._places.leave()
            raise

    def give_back(self, worker: Worker, *, is_reusable: bool) -> None:
        with self._lock:
            is_kept = is_reusable and worker in self._all and not worker.is_killed and self._users > 0
            if is_kept:
                worker.idle_since = time.monotonic()
                self._idle.append(worker)
                self._retire_later()
            else:
                self._forget([worker])
        self._places.leave()
        if not is_kept:
            worker.dispose()

    def close(self) -> None:
        """At exit. Backends have ended their runs by then."""
        with self._lock:
            workers = list(self._all)
            self._forget(workers)
        _dispose(workers)
        launcher().rest()

    def _take_idle(self, wanted: Wanted) -> Worker | None:
        dead = []
        with self._lock:
            while (worker := self._best(wanted)) is not None:
                self._idle.remove(worker)
                if worker.is_waiting():
                    break
                dead.append(worker)
            self._forget(dead)
        _dispose(dead)
        return worker

    def _best(self, wanted: Wanted) -> Worker | None:
        # The most recently used one is the warmest; the others get a chance to be retired.
        fitting = [worker for worker in reversed(self._idle) if wanted.fits(worker)]
        return next((worker for worker in fitting if wanted.prefer in worker.loaded), next(iter(fitting), None))

    def _start(self, directories: Directories) -> Worker:
        worker = Worker(directories if launcher().confines else ())
        with self._lock:
            self._all.add(worker)
            surplus = self._idle[: max(0, len(self._all) - self._most)]
            self._forget(surplus)
        _dispose(surplus)
        try:
            _await_ready(worker)
        except BaseException:
            with self._lock:
                self._forget([worker])
            worker.dispose()
            raise
        return worker

    def _forget(self, workers: Iterable[Worker]) -> None:
        for worker in workers:
            self._all.discard(worker)
            if worker in self._idle:
                self._idle.remove(worker)

    def _retire_later(self) -> None:
        if self._retiring is None:
            self._retiring = threading.Thread(target=self._retire, name="warmcell-wasm-idle", daemon=True)
            self._retiring.start()

    def _retire(self) -> None:
        """Ends those that have waited too long, until none waits any more."""
        while True:
            time.sleep(_IDLE_SECONDS / 4)
            with self._lock:
                oldest = time.monotonic() - _IDLE_SECONDS
                stale = [worker for worker in self._idle if worker.idle_since < oldest]
                self._forget(stale)
                is_over = not self._idle
                if is_over:
                    self._retiring = None
            _dispose(stale)
            if is_over:
                return


@functools.cache
def program_pool() -> WorkerPool:
    """The one pool of this program."""
    return WorkerPool()


def _dispose(workers: Iterable[Worker]) -> None:
    for worker in workers:
        worker.dispose()


def _await_ready(worker: Worker) -> None:
    """Returns when the worker can take requests; a new worker needs a few hundredths of a second."""
    try:
        frame = Conversation(worker, Bounds(_START_SECONDS, _START_MEMORY)).wait()
    except (WorkerDied, Overstayed, ProtocolViolation) as error:
        _log.warning("a WASM worker did not start: %s", worker.log() or error)
        raise ExecutionFailed(
            "a WASM worker did not start", hint="the log of warmcell.backends.wasm says why"
        ) from None
    worker.is_ready = frame.message.get("op") == "ready"


class WorkerUnusable(Exception):
    """The worker was gone before anything of the guest's reached it, so another one can take its place."""


class Lease:
    """A worker for the length of one run, given back whatever happens; it is reused only when `is_reusable` was set.

    While it is held, cancelling the run kills the worker; afterwards it cannot reach it any more.
    """

    def __init__(self, pool: WorkerPool, wanted: Wanted, run: Run, queue_timeout: float) -> None:
        self._pool = pool
        self._wanted = wanted
        self._run = run
        self._queue_timeout = queue_timeout
        self._held = ExitStack()
        self.is_reusable = False
        self._take(wanted)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back(self.is_reusable)

    def swap_for_clean(self) -> None:
        """Another worker, in which nothing of any guest has ever been."""
        self._give_back(is_reusable=True)
        self._take(Wanted(directories=self._wanted.directories, needs_clean=True))

    def _take(self, wanted: Wanted) -> None:
        self.worker = self._pool.take(wanted, self._run, self._queue_timeout)
        self._is_held = True
        self._held.enter_context(self._run.on_cancel(self.worker.kill))

    def _give_back(self, is_reusable: bool) -> None:
        if not self._is_held:
            return
        self._is_held = False
        self._held.close()  # first: a cancellation that comes late must not hit whoever gets the worker next
        self._pool.give_back(self.worker, is_reusable=is_reusable)

    def send(self, message: dict[str, Any], blob: bytes, descriptors: Sequence[int] = (), *, seconds: float) -> None:
        """A request. Raises `WorkerUnusable` where the worker died by itself before it could take it."""
        try:
            self.worker.channel.send(message, blob, descriptors, timeout=seconds)
        except WorkerDied:
            if self.worker.is_killed:
                raise
            raise WorkerUnusable from None

    def explain_death(self, what: str) -> Exception:
        """Why the worker is gone. Disposes of it, so that its status is known."""
        if self._run.is_cancelled:
            return RunCancelled()
        was_killed = self.worker.is_killed
        status = self.worker.dispose()
        if was_killed:
            return BackendUnavailable("the WASM workers were ended during the run")
        if self.worker.log():
            _log.warning("a WASM worker died while %s: %s", what, self.worker.log())
        ended = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        return ExecutionFailed(f"the WASM worker died ({ended}) while {what}", hint="other runs are not affected")
