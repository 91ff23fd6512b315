"""The workers of this program: started on demand, reused after clean runs, thrown away after anything else.

There is one pool for all backends and sandboxes. A confined worker is shown certain directories once, and from then on
is handed out for exactly those; every run in it has a Store of its own.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress

from warmcell.backends.wasm.conversation import Bounds, Conversation
from warmcell.backends.wasm.frames import Overstayed, ProtocolViolation, WorkerDied
from warmcell.backends.wasm.launcher import launcher
from warmcell.backends.wasm.run_request import Directories
from warmcell.backends.wasm.worker import Worker, places_for
from warmcell.core.errors import ExecutionFailed, SandboxError
from warmcell.core.late_log import LateLog
from warmcell.core.records import dataclass
from warmcell.lifetime.descriptors import told_shortage
from warmcell.lifetime.fair_queue import FairQueue
from warmcell.lifetime.host_program import start_daemon
from warmcell.lifetime.ownership import own_until_exit
from warmcell.lifetime.run import Run
from warmcell.lifetime.scarcity import scarcity
from warmcell.runner.cell import CellLost

_log = LateLog(__name__)
#: Of the program as a whole; each backend allows itself fewer.
MOST_WORKERS = 256
_IDLE_SECONDS = 60.0
_START_SECONDS = 30.0
_START_MEMORY = 1 << 30
#: How often a zygote may turn out to be dying.
_ATTEMPTS = 3
#: A program that runs one command and ends has no use for a spare worker.
_SPARE_DELAY_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which worker will do: one that has `prefer` loaded if possible."""

    prefer: str = ""
    directories: Directories = ()
    needs_clean: bool = False
    needs_new: bool = False

    def fits(self, worker: Worker) -> bool:
        return (worker.directories == self.shown or worker.can_be_shown(self.shown)) and (
            worker.is_clean or not self.needs_clean
        )

    @property
    def shown(self) -> Directories:
        """Where nothing confines workers, all of them see everything."""
        return self.directories if launcher().confines else ()


class WorkerUnusable(Exception):
    """The worker was gone before anything of the guest's reached it, so another one can take its place."""


class WorkerPool:
    """Thread-safe. In a fork it is empty; the workers stay the parent's."""

    def __init__(self, most: int = MOST_WORKERS) -> None:
        self._most = most
        self._places = FairQueue(most)
        self.abandon()
        own_until_exit(self)
        scarcity.hold(self)

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._users = 0
        self._retiring: threading.Thread | None = None
        self._is_making_spare = False
        self._spare_settled = threading.Event()
        self._spare_settled.set()
        self._is_closing = threading.Event()

    def join(self) -> None:
        """Another backend or sandbox uses the pool; it says `leave` in the end."""
        with self._lock:
            self._users += 1
            self._is_closing.clear()

    def leave(self, directories: Collection[Directories] = ()) -> None:
        """Workers that wait for runs in these directories end now; with the last user all but a spare do."""
        with self._lock:
            self._users = max(0, self._users - 1)
            is_last = self._users == 0
            gone = [
                worker
                for worker in self._idle
                if worker.directories in directories or (is_last and not worker.is_spare)
            ]
            self._forget(gone)
            is_empty = is_last and not self._all
        _dispose(gone)
        if is_empty:
            launcher().rest()

    @property
    def pids(self) -> list[int]:
        """Of all workers that are alive."""
        with self._lock:
            return [worker.pid for worker in self._all if worker.has_begun]

    def take(self, wanted: Wanted, run: Run, queue_timeout: float) -> Worker:
        """An idle worker or a new one, ready for requests. Where all are busy it waits: `BackendBusy` in the end.

        A caller who holds a worker while waiting for another gives 0, for it could wait for ever.
        """
        self._places.enter(run, queue_timeout)
        try:
            if (ready := self._take_ready(wanted)) is not None:
                return ready
            return scarcity.retried(
                lambda: self._loaded(self._shown(self._begun(self._take_idle(wanted), wanted), wanted)),
                run,
                queue_timeout,
                own=self,
            )
        except BaseException:
            self._places.leave()
            raise

    def start_ahead(self) -> None:
        """For a program that is about to need one: it loads while its supervisor loads the rest."""
        with suppress(SandboxError):  # told when it is needed
            worker = self._start(Wanted())
            worker.idle_since = time.monotonic()
            with self._lock:
                self._idle.append(worker)

    def shed(self) -> bool:
        """Ends the workers that wait."""
        with self._lock:
            gone = tuple(self._idle)
            self._forget(gone)
        _dispose(gone)
        return bool(gone)

    def give_back(self, worker: Worker, *, is_reusable: bool) -> None:
        with self._lock:
            is_wanted = self._users > 0 or worker.is_spare
            is_kept = is_reusable and worker in self._all and not worker.is_killed and is_wanted
            if is_kept:
                worker.idle_since = time.monotonic()
                self._idle.append(worker)
                if self._retiring is None:
                    self._retire_later()
            else:
                self._forget([worker])
        self._places.leave()
        if not is_kept:
            worker.dispose()

    def claim_spare(self) -> bool:
        """Whether the caller is to make one that nobody has used, and call `spare_is_made` in the end."""
        with self._lock:
            has_one = self._is_making_spare or any(worker.is_spare for worker in self._idle)
            is_wanted = launcher().confines and self._users > 0 and not has_one
            self._is_making_spare = self._is_making_spare or is_wanted
            if is_wanted:
                self._spare_settled.clear()
            return is_wanted

    def is_still_open(self) -> bool:
        """A moment later, for who is about to make a spare."""
        return not self._is_closing.wait(_SPARE_DELAY_SECONDS)

    def spare_is_made(self) -> None:
        self._is_making_spare = False
        self._spare_settled.set()

    def close(self) -> None:
        """At exit. Backends have ended their runs by then; whoever still holds a worker sees it die."""
        self._is_closing.set()
        # A worker that is being started is nobody's yet, and its cage would wait for it to end by itself.
        self._spare_settled.wait(_START_SECONDS)
        with self._lock:
            idle, busy = list(self._idle), self._all - set(self._idle)
            self._forget([*idle, *busy])
        for worker in busy:
            worker.kill()
        _dispose(idle)
        launcher().rest()

    def _take_ready(self, wanted: Wanted) -> Worker | None:
        """The worker that ran the same last, if it waits: nothing has to be chosen, shown or started."""
        with self._lock:
            last = self._idle[-1] if self._idle else None
            if last is None or wanted.prefer not in last.loaded or wanted.needs_new or wanted.needs_clean:
                return None
            if last.directories != wanted.shown or not last.is_waiting():
                return None
            return self._idle.pop()

    def _take_idle(self, wanted: Wanted) -> Worker | None:
        dead = []
        with self._lock:
            while (worker := self._best(wanted)) is not None:
                self._idle.remove(worker)
                if not worker.is_ready or worker.is_waiting():
                    break
                dead.append(worker)
            self._forget(dead)
        _dispose(dead)
        return worker

    def _best(self, wanted: Wanted) -> Worker | None:
        if wanted.needs_new:
            return None
        # The most recently used one is the warmest; the others get a chance to be retired.
        fitting = [worker for worker in reversed(self._idle) if wanted.fits(worker)]
        fitting.sort(key=lambda worker: (worker.directories != wanted.shown, wanted.prefer not in worker.loaded))
        return fitting[0] if fitting else None

    def _begun(self, worker: Worker | None, wanted: Wanted) -> Worker:
        """The same worker, or a new one, whose process is there."""
        for _ in range(_ATTEMPTS):
            worker = worker or self._start(wanted)
            try:
                if not worker.has_begun:
                    worker.begin()
                return worker
            except BaseException as error:
                self._drop(worker)
                launcher().rest()
                if not isinstance(error, CellLost):
                    raise
                worker = None  # its zygote was dying: another one takes its place
        raise ExecutionFailed("the cages of WASM workers end before they can be used")

    def _shown(self, worker: Worker, wanted: Wanted) -> Worker:
        """The same worker, which from now on can reach the directories."""
        if worker.directories == wanted.shown:
            return worker
        try:
            worker.show(wanted.shown)
        except BaseException as error:
            self._drop(worker)
            if isinstance(error, CellLost):
                raise WorkerUnusable from None
            raise
        return worker

    def _drop(self, worker: Worker) -> None:
        with self._lock:
            self._forget([worker])
        worker.dispose()

    def _start(self, wanted: Wanted) -> Worker:
        worker = Worker(places_for(wanted.shown))
        with self._lock:
            self._all.add(worker)
            surplus = self._idle[: max(0, len(self._all) - self._most)]
            self._forget(surplus)
        _dispose(surplus)
        return worker

    def _loaded(self, worker: Worker) -> Worker:
        """The same worker, which can take requests now."""
        if not worker.is_ready:
            try:
                _await_ready(worker)
            except BaseException:
                self._drop(worker)
                raise
        return worker

    def _forget(self, workers: Iterable[Worker]) -> None:
        for worker in workers:
            self._all.discard(worker)
            if worker in self._idle:
                self._idle.remove(worker)

    def _retire_later(self) -> None:
        with suppress(SandboxError):  # no thread to be had: they wait until the program ends
            self._retiring = start_daemon(self._retire, name="warmcell-wasm-idle")

    def _retire(self) -> None:
        """Ends those that have waited too long, until none waits any more."""
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
                launcher().rest()
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
        if frame.message.get("op") != "ready":
            raise ProtocolViolation("its first word is another")
    except (WorkerDied, Overstayed, ProtocolViolation) as error:
        if not worker.is_killed:  # else the program is ending, and nobody waits for it
            _log.warning("a WASM worker did not start: %s", worker.log() or error)
        hint = "the log of warmcell.backends.wasm says why; too few processes (`ulimit -u`) are a usual reason"
        failure = ExecutionFailed("a WASM worker did not start", hint=hint)
        raise told_shortage(worker.log(), "start a WASM worker") or failure from None
    worker.is_ready = True
