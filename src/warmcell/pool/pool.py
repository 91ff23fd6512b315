"""Pool: leases cells, ready ones where there are any, and makes more in the background. Safe from many threads."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque

from warmcell.cage.linux.cgroups import GroupLimits, Home
from warmcell.cage.wire import Job
from warmcell.core.errors import BackendUnavailable, EnforcerFailed, SandboxError
from warmcell.core.records import dataclass
from warmcell.lifetime.ownership import own_until_exit
from warmcell.pool.state import IDLE_SECONDS, PoolState
from warmcell.pool.zygote import ZygoteKey, ZygoteProcess
from warmcell.runner.cell import Cell, CellLost

_READY_TIMEOUT = 30.0
_RUNS_PER_ZYGOTE = 10_000
_ATTEMPTS = 3
_QUIET_SECONDS = 0.02
_DYING_SECONDS = 0.2  # a zygote that was killed still counts as living for a moment


@dataclass(frozen=True, slots=True)
class CellKind:
    """Cells of one kind are interchangeable until one is used. `is_pooled`: worth keeping ready."""

    zygote: ZygoteKey
    plan: str
    group: GroupLimits | None
    is_pooled: bool = True
    #: Whether its init watches over the run, and whether the job will be a program.
    has_keeper: bool = True
    execs: bool = True
    #: Given to the cell as soon as it stands, for programs that start first and get their code later.
    prelude: Job | None = None

    def __hash__(self) -> int:
        return hash((self.zygote, self.plan, self.group, self.execs, self.prelude and self.prelude.argv))


class Pool:
    """Owned by a backend. `close` ends every zygote and waiting cell."""

    def __init__(self, smallest: int, largest: int, home: Home | None) -> None:
        self._home = home
        self._smallest, self._largest = smallest, largest
        self._is_closed = False
        self.abandon()
        own_until_exit(self)

    def abandon(self) -> None:
        """In a forked copy: the original keeps its cells and zygotes, the copy starts with none."""
        self._state = PoolState(self._smallest, self._largest, max(self._largest * 4, 1))
        self._changed = threading.Condition()
        self._ready: defaultdict[CellKind, deque[Cell]] = defaultdict(deque)
        self._zygotes: dict[ZygoteKey, ZygoteProcess] = {}
        self._retired: list[ZygoteProcess] = []
        self._runs: defaultdict[ZygoteKey, int] = defaultdict(int)
        self._zygote_locks: defaultdict[ZygoteKey, threading.Lock] = defaultdict(threading.Lock)
        self._maker: threading.Thread | None = None
        self._leased = 0

    def lease(self, kind: CellKind) -> Cell:
        """A standing cage of that kind, for one run. The caller closes it and then calls `done`."""
        self._leased += 1
        if kind.is_pooled and self._largest:
            cell = self._take(kind)
            if cell is not None:
                return cell
        return self.make(kind)

    def done(self) -> None:
        """A leased cell was closed: a good moment to make others."""
        with self._changed:
            self._leased -= 1
            self._changed.notify()

    def linger(self) -> None:
        """A run takes its time: others may be made meanwhile. Short runs are not disturbed by their making."""
        with self._changed:
            self._changed.notify()

    def _take(self, kind: CellKind) -> Cell | None:
        while True:
            with self._changed:
                self._check_open()
                is_there = self._state.lease(kind, time.monotonic())
                cell = self._ready[kind].popleft() if is_there else None
                self._start_maker()
            if cell is None or cell.is_alive():
                return cell
            cell.close()

    def make(self, kind: CellKind, *, waits: bool = False) -> Cell:
        """Makes a cell now. A zygote that died is replaced; a cage that cannot be built is an error at once."""
        for attempt in range(_ATTEMPTS):
            cell = None
            zygote = self._zygote(kind.zygote)
            try:
                cell = zygote.order_cell(
                    kind.plan,
                    self._home,
                    kind.group,
                    has_keeper=kind.has_keeper,
                    execs=kind.execs,
                    waits=waits,
                )
                cell.await_ready(_READY_TIMEOUT)
                if kind.prelude is not None:
                    cell.start(kind.prelude, starts_clock=False)
                return cell
            except CellLost:
                if cell is not None:
                    cell.close()
                zygote.await_death(_DYING_SECONDS)
                if attempt == _ATTEMPTS - 1:
                    raise EnforcerFailed(kind.zygote.enforcer, "cells die as soon as they are made") from None
            except BaseException:
                if cell is not None:
                    cell.close()
                raise
        raise AssertionError("unreachable")

    def _zygote(self, key: ZygoteKey) -> ZygoteProcess:
        with self._changed:
            self._check_open()
            lock = self._zygote_locks[key]
        with lock:  # starting one takes a while, and must not hold up everybody else
            zygote = self._zygotes.get(key)
            if zygote is not None and zygote.is_alive() and self._runs[key] < _RUNS_PER_ZYGOTE:
                self._runs[key] += 1
                return zygote
            if zygote is not None:
                zygote.retire()
                self._retired.append(zygote)
            self._zygotes[key] = ZygoteProcess(key, self._home.prefix if self._home else ())
            self._runs[key] = 1
            return self._zygotes[key]

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendUnavailable("the backend was closed", hint="create a new one")

    def _start_maker(self) -> None:
        if self._maker is None:
            self._maker = threading.Thread(target=self._make_in_background, name="warmcell-pool", daemon=True)
            self._maker.start()

    def _make_in_background(self) -> None:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                if self._leased:
                    # Making a cell now would take processor and interpreter lock from the run that was just started.
                    self._changed.wait(_QUIET_SECONDS)
                    if self._is_closed:
                        return
                wanted = self._state.wanted()
                dropped = [self._ready[kind].popleft() for kind in self._state.surplus(time.monotonic())]  # type: ignore[index]
                if not wanted and not dropped:
                    self._changed.wait(IDLE_SECONDS)
                    continue
            for cell in dropped:
                cell.close()
            for kind in wanted:
                self._make_one(kind)  # type: ignore[arg-type]

    def _make_one(self, kind: CellKind) -> None:
        try:
            cell = self.make(kind, waits=True)
        except (SandboxError, OSError):
            # The next caller that needs one makes it itself and is told what is wrong.
            with self._changed:
                self._state.failed(kind)
            return
        with self._changed:
            is_kept = not self._is_closed and self._state.made(kind)
            if is_kept:
                self._ready[kind].append(cell)
        if not is_kept:
            cell.close()

    def ready_count(self, kind: CellKind | None = None) -> int:
        """How many cells wait, of one kind or of all."""
        with self._changed:
            return len(self._ready[kind]) if kind else sum(len(cells) for cells in self._ready.values())

    def zygote_pids(self) -> list[int]:
        return [zygote.pid for zygote in self._zygotes.values() if zygote.is_alive()]

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._state.clear()
            cells = [cell for waiting in self._ready.values() for cell in waiting]
            self._ready.clear()
            self._changed.notify_all()
        if self._maker is not None and self._maker is not threading.current_thread():
            self._maker.join(10)
        for cell in cells:
            cell.close()
        for zygote in (*self._zygotes.values(), *self._retired):
            zygote.close()
        self._zygotes.clear()
        self._retired.clear()
