"""Pool: leases cells, ready ones where there are any, and makes more in the background. Safe from many threads."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable

from warmcell.cage.wire import Job
from warmcell.core import events
from warmcell.core.errors import BackendUnavailable, EnforcerFailed, SandboxError
from warmcell.core.light import suppress
from warmcell.core.records import dataclass
from warmcell.lifetime.host_program import start_daemon
from warmcell.lifetime.ownership import own_until_exit
from warmcell.lifetime.run import Run
from warmcell.lifetime.scarcity import scarcity
from warmcell.pool.shared_zygotes import ZygoteShare, shared_zygotes
from warmcell.pool.state import IDLE_SECONDS, PoolState
from warmcell.pool.waiting_room import waiting_room
from warmcell.pool.zygote import DYING_SECONDS, ZygoteKey, ZygoteProcess
from warmcell.runner.cell import Cell, CellLost
from warmcell.runner.cgroup_parent import GroupParent
from warmcell.runner.cgroups import Group, GroupLimits

_READY_SECONDS = 30.0
_ATTEMPTS = 3
_QUIET_SECONDS = 0.02
#: Runs that follow each other closer than this come from somebody in a hurry.
_HURRY_SECONDS = 0.005
_MOST_LEFT_OPEN = 2


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
    #: Whether it is sure to be one, by its path.
    is_program: bool = False
    #: Given to the cell as soon as it stands, for programs that start first and get their code later.
    prelude: Job | None = None
    #: A descriptor of the caller's for the guest to have as 0; such a cell is never kept.
    stdin: int | None = None

    def __hash__(self) -> int:
        return hash((self.plan, self.execs, self.is_program))  # in which nearly all of them differ


class Pool:
    """Owned by a backend. `close` ends every waiting cell, and the zygotes that no other backend uses.

    In a fork there are none yet.
    """

    def __init__(self, smallest: int, largest: int, group_parent: GroupParent | None) -> None:
        self._group_parent = group_parent
        self.descriptors_of_a_cell = 12 if group_parent else 8
        self._smallest, self._largest = smallest, largest
        self._is_closed = False
        self.last_used = 0.0
        self.abandon()
        own_until_exit(self)
        scarcity.hold(self)
        waiting_room.enter(self)

    def abandon(self) -> None:
        """In a forked copy: the original keeps its cells and zygotes, the copy starts with none."""
        self._state = PoolState(self._smallest, self._largest, 2 * self._largest)
        self._lock = threading.RLock()  # taken as it is: the condition's own methods are a call each
        self._changed = threading.Condition(self._lock)
        self._ready: defaultdict[CellKind, deque[Cell]] = defaultdict(deque)
        self._zygotes: dict[ZygoteKey, ZygoteShare] = {}
        self._maker: threading.Thread | None = None
        #: Of cells that were used: who waits for a result need not wait for their removal.
        self._left_groups: deque[Group] = deque()
        self._leased = self._staying = 0
        #: Since when nothing is leased, and how long that was before the last lease.
        self._idle_since = self._pause = 0.0
        self._is_making = False

    def begin(self) -> None:
        """Before anything is leased for a run. Who has called it calls `done`, in any case."""
        with self._lock:
            if not self._leased:
                self._pause = time.monotonic() - self._idle_since
            self._leased += 1

    def lease(self, kind: CellKind, run: Run, meanwhile: Callable[[], object] | None = None) -> Cell:
        """A standing cage of that kind, for one run, which the caller closes. Cancelling the run ends the waiting.

        `meanwhile` is done while a cell is made, where none is ready.
        """
        cell = self._take(kind) if kind.is_pooled and self._largest else None
        if events.listeners and (subject := events.current_run()):
            events.emit("cell", subject, {"was_ready": cell is not None})
        if cell is not None:
            return cell
        with run.descriptor() as cancelled:
            return self._make(kind, run, cancelled, meanwhile=meanwhile)

    def done(self) -> None:
        """What was leased was closed: a good moment to make others.

        The last thing that a run does: whoever makes them is awake then, and wants the interpreter's lock.
        """
        with self._lock:
            self._leased -= 1
            self._idle_since = time.monotonic()
            for share in self._zygotes.values():
                share.forget_ended()
            self._changed.notify()
            has_maker = self._maker is not None
        if not has_maker:
            self._remove_left_groups()

    def stay(self) -> None:
        """In place of `done`: what was leased goes on for long, and is not to keep others from being made.

        Zygotes with such a cell are not shed: their end would be its end. `leave` is called when it was closed.
        """
        with self._lock:
            self._staying += 1
        self.done()

    def leave(self) -> None:
        with self._lock:
            self._staying -= 1

    def linger(self) -> None:
        """A run takes its time: others may be made meanwhile. Short runs are not disturbed by their making."""
        with self._lock:
            self._changed.notify()

    def _take(self, kind: CellKind) -> Cell | None:
        while True:
            with self._lock:
                self._check_open()
                self.last_used = time.monotonic()
                is_there = self._state.lease(kind, self.last_used)
                cell = self._ready[kind].popleft() if is_there else None
                self._start_maker()
            if cell is None:
                return None
            try:
                if cell.is_alive():
                    cell.dispose_of_group = self._leave_group
                    return cell
            except BaseException:
                cell.close()
                raise
            cell.close()

    def _make(
        self,
        kind: CellKind,
        run: Run,
        cancelled: int = -1,
        *,
        waits: bool = False,
        meanwhile: Callable[[], object] | None = None,
    ) -> Cell:
        """Makes a cell now. A zygote that died is replaced; a cage that cannot be built is an error at once."""
        for attempt in range(_ATTEMPTS):
            cell = None
            zygote = self._zygote(kind.zygote, run, cancelled)
            try:
                cell = zygote.order_cell(
                    kind.plan,
                    self._group_parent,
                    kind.group,
                    stdin=kind.stdin,
                    has_keeper=kind.has_keeper,
                    execs=kind.execs,
                    is_program=kind.is_program,
                    waits=waits,
                )
                if meanwhile is not None:
                    meanwhile()
                cell.await_ready(_READY_SECONDS, cancelled)
                if kind.prelude is not None:
                    cell.start(kind.prelude)
                return cell
            except CellLost:
                if cell is not None:
                    cell.close()
                zygote.await_death(DYING_SECONDS)
                if attempt == _ATTEMPTS - 1:
                    raise EnforcerFailed(kind.zygote.enforcer, "cells die as soon as they are made") from None
            except BaseException:
                if cell is not None:
                    cell.close()
                raise
        raise AssertionError("unreachable")

    def _zygote(self, key: ZygoteKey, run: Run, cancelled: int) -> ZygoteProcess:
        """The living one, or a new one. Starting one takes a while, and must not hold up those who need another."""
        with self._lock:
            self._check_open()
            share = self._zygotes.get(key)
            if share is None:
                prefix = self._group_parent.prefix if self._group_parent else ()
                share = self._zygotes[key] = shared_zygotes.join(key, prefix)
        zygote = share.zygote(run, cancelled)
        self._check_open()  # it may have started for others, while we were closed
        return zygote

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendUnavailable("the backend was closed", hint="create a new one")

    def _start_maker(self) -> None:
        if self._maker is None:
            with suppress(SandboxError):  # no thread to be had: cells are then made when they are needed
                self._maker = start_daemon(self._make_in_background, name="warmcell-pool")

    def _make_in_background(self) -> None:
        while True:
            self._remove_left_groups()
            with self._lock:
                if self._is_closed:
                    return
                if self._leased:
                    # Making a cell now would take processor and interpreter lock from the run that was just started.
                    self._changed.wait(_QUIET_SECONDS)
                    if self._is_closed:
                        return
                dropped = [self._ready[kind].popleft() for kind in self._state.surplus(time.monotonic())]  # type: ignore[index]
                wanted = self._state.wanted()
                self._forget_empty_shelves()
                if not wanted and not dropped:
                    if not self._changed.wait(IDLE_SECONDS) and not self._state.shelves:
                        self._maker = None  # until somebody asks again
                        return
                    continue
                self._is_making = bool(wanted)
            for cell in dropped:
                cell.close()
            for kind in wanted:
                self._make_one(kind)  # type: ignore[arg-type]
            self._is_making = False

    def _leave_group(self, group: Group) -> None:
        """To be removed when nobody waits. A few may keep their files open until then, of all that others can open."""
        if len(self._left_groups) >= _MOST_LEFT_OPEN:
            group.close_counters()
        self._left_groups.append(group)

    def _remove_left_groups(self) -> None:
        with suppress(IndexError):
            while True:
                self._left_groups.popleft().remove()

    def _forget_empty_shelves(self) -> None:
        for kind in [kind for kind, cells in self._ready.items() if not cells]:
            del self._ready[kind]

    def _make_one(self, kind: CellKind) -> None:
        # One that will wait rehearses its job, which makes the run shorter and costs as much again. While runs are
        # under way, or follow each other closely, it will be taken at once, and the processor is better spent on them.
        waits = not self._leased and max(self._pause, time.monotonic() - self._idle_since) > _HURRY_SECONDS
        cell = None
        with suppress(SandboxError, OSError):  # the next caller makes it itself, and is told what is wrong
            cell = self._make(kind, Run(), waits=waits) if waiting_room.has_place_for(self) else None
        if cell is None:
            with self._lock:
                self._state.failed(kind)
            return
        cell.prepare_for_end()
        with self._lock:
            is_kept = not self._is_closed and self._state.made(kind)
            if is_kept:
                self._ready[kind].append(cell)
        if not is_kept:
            cell.close()

    def ready_count(self, kind: CellKind | None = None) -> int:
        """How many cells wait, of one kind or of all."""
        with self._lock:
            return len(self._ready[kind]) if kind else sum(len(cells) for cells in self._ready.values())

    def zygote_pids(self) -> list[int]:
        with self._lock:
            return [pid for share in self._zygotes.values() if (pid := share.pid)]

    def shed(self) -> bool:
        """Ends the cells that wait, and leaves the zygotes if we are served by none; all are had anew when needed."""
        with self._lock:
            cells = [cell for waiting in self._ready.values() for cell in waiting]
            self._ready.clear()
            self._state.clear()
            shares: dict[ZygoteKey, ZygoteShare] = {}
            if not self._leased and not self._staying and not self._is_making:
                shares, self._zygotes = self._zygotes, {}
        return _let_go(cells, shares)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._state.clear()
            cells = [cell for waiting in self._ready.values() for cell in waiting]
            self._ready.clear()
            shares, self._zygotes = self._zygotes, {}
            self._changed.notify_all()
        if self._maker is not None and self._maker is not threading.current_thread():
            self._maker.join(10)
        self._remove_left_groups()
        _let_go(cells, shares)


def _let_go(cells: list[Cell], shares: dict[ZygoteKey, ZygoteShare]) -> bool:
    """Whether anything ended by it."""
    for cell in cells:
        cell.close()
    return bool([share for share in shares.values() if shared_zygotes.leave(share)] or cells)
