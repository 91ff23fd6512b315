"""Pool: leases cells and makes more in the background. Safe from many threads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import count

from warmcell.cage.wire import GuestJob
from warmcell.core import events
from warmcell.core.errors import BackendUnavailable, EnforcerFailed, SandboxError
from warmcell.core.light import suppress
from warmcell.core.records import dataclass
from warmcell.lifetime import descriptors
from warmcell.lifetime.descriptor_pressure import descriptor_pressure
from warmcell.lifetime.ownership import own_until_exit
from warmcell.lifetime.run import Run
from warmcell.pool.shared_zygotes import ZygoteShare, shared_zygotes
from warmcell.pool.supply import Supply, warm_cell_budget
from warmcell.pool.zygote import DYING_SECONDS, ZygoteKey, ZygoteProcess
from warmcell.runner.cell import Cell, CellLost
from warmcell.runner.cgroup_parent import GroupParent
from warmcell.runner.cgroups import Group, GroupLimits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Protocol

    from warmcell.cage.plan import Sources
else:
    Protocol = object  # for type checkers only

_READY_SECONDS = 30.0
_CLOSE_SECONDS = 10.0
_ATTEMPTS = 3
_QUIET_SECONDS = 0.02
#: Runs that follow each other more closely than this are a burst.
_HURRY_SECONDS = 0.005
_MOST_LEFT_OPEN = 2
_twin_numbers = count(1)
#: With so many runs in progress, threads compete for the interpreter lock.
_MANY_AT_ONCE = 4


class Overlay(Protocol):
    """A mounted overlay that is shown to many cells."""

    @property
    def upper(self) -> str:
        """The host directory that writes go to."""
        ...

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices that files and directories in it seem to be on."""
        ...

    def copy_tree(self) -> AbstractContextManager[int]:
        """A detached copy for one cell, closed after the block."""
        ...


@dataclass(frozen=True, slots=True)
class CellKind:
    """Cells of one kind are interchangeable until one is used. `is_pooled`: worth keeping warm."""

    zygote: ZygoteKey
    plan: str
    group: GroupLimits | None
    is_pooled: bool = True
    #: Whether its init watches the run, and whether the job execs a program.
    has_keeper: bool = True
    execs: bool = True
    #: Whether the job is certain to exec, by its path.
    is_program: bool = False
    #: Sent to the cell when it is ready, for programs that start first and get their code later.
    prelude: GuestJob | None = None
    #: A descriptor of the caller's for the guest's stdin; such a cell is never pooled.
    stdin: int | None = None
    #: Whether the plan contains path names of the caller's own, which guests of other pools must not find.
    names_places: bool = False
    #: For the given bind of the plan, if it has one.
    overlay: Overlay | None = None
    #: Of the caller's paths, if the plan is without them.
    sources: Sources = ()

    def __hash__(self) -> int:
        return hash((self.plan, self.execs, self.is_program))  # the fields in which nearly all differ


class Pool(Supply[CellKind, Cell]):
    """Owned by a backend. `close` ends every warm cell, and the zygotes that no other backend uses.

    A fork starts with none.
    """

    def __init__(self, smallest: int, largest: int, group_parent: GroupParent | None) -> None:
        self._group_parent = group_parent
        self.descriptors_of_a_cell = 12 if group_parent else 8
        super().__init__(smallest, largest, 2 * largest)
        own_until_exit(self)
        descriptor_pressure.register(self)
        if largest:
            warm_cell_budget.enter(self)

    def abandon(self) -> None:
        """In a forked copy: the original keeps its cells and zygotes."""
        super().abandon()
        self._zygotes: dict[ZygoteKey, ZygoteShare] = {}
        #: The twin of each zygote that is ours alone, and whether there may be any.
        self._twin, self._has_twin = next(_twin_numbers), False
        #: Groups of used cells, removed after the caller has its result.
        self._left_groups: deque[Group] = deque()
        self._leased = self._pinned = 0
        #: Since when nothing is leased, and how long the pause before the last lease was.
        self._idle_since = self._pause = 0.0

    def begin_lease(self) -> None:
        """Called before anything is leased for a run; always followed by `end_lease`."""
        with self.lock:
            if not self._leased:
                self._pause = time.monotonic() - self._idle_since
            self._leased += 1
            if self._leased == _MANY_AT_ONCE:
                descriptors.keep_lock()

    def lease(self, kind: CellKind, run: Run, meanwhile: Callable[[], object] | None = None) -> Cell:
        """A cell of that kind for one run, which the caller closes. Cancelling the run ends the wait.

        Calls `meanwhile` while a cell is made, if none is warm.
        """
        cell = self._take(kind) if kind.is_pooled and self.largest else None
        if events.listeners and (subject := events.current_run()):
            events.emit("cell", subject, {"was_ready": cell is not None})
        if cell is not None:
            return cell
        with run.descriptor() as cancelled:
            return self._make(kind, run, cancelled, meanwhile=meanwhile)

    def end_lease(self) -> None:
        """The leased cell was closed: make others now.

        The last step of a run, because the maker thread then competes for the interpreter lock.
        """
        with self.lock:
            self._leased -= 1
            self._idle_since = time.monotonic()
            for share in self._zygotes.values():
                share.forget_ended()
            self.changed.notify()
            has_keeper = self.keeper is not None
        if not has_keeper:
            self._remove_left_groups()

    def pin(self) -> None:
        """In place of `end_lease`: the leased cell lives long and must not keep others from being made.

        Zygotes with a pinned cell are not shed, because the cell would die with them. `unpin` follows when it was
        closed.
        """
        with self.lock:
            self._pinned += 1
        self.end_lease()

    def unpin(self) -> None:
        with self.lock:
            self._pinned -= 1

    def on_slow_run(self) -> None:
        """A run takes long, so others may be made meanwhile. Making them would disturb a short run."""
        with self.lock:
            self.changed.notify()

    def _take(self, kind: CellKind) -> Cell | None:
        while True:
            with self.lock:
                self._check_open()
                cell = self.hand_over(kind, time.monotonic())
                if self.keeper is None:
                    self.start_keeper()
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
        """Makes a cell now. Replaces a zygote that died; a cage that cannot be built is an error at once."""
        for _ in range(_ATTEMPTS):
            cell = None
            zygote = self._zygote(kind.zygote, run, cancelled)
            try:
                cell = self._order_cell(zygote, kind, waits)
                if meanwhile is not None:
                    meanwhile()
                cell.await_ready(_READY_SECONDS, cancelled)
                if kind.prelude is not None:
                    cell.start(kind.prelude)
                return cell
            except BaseException as error:
                if cell is not None:
                    cell.close()
                if not isinstance(error, CellLost):
                    raise
                zygote.await_death(DYING_SECONDS)
        raise EnforcerFailed(kind.zygote.enforcer, "cells die as soon as they are made")

    def _order_cell(self, zygote: ZygoteProcess, kind: CellKind, waits: bool) -> Cell:
        if kind.names_places:
            self._has_twin = True

        def order(*trees: int) -> Cell:
            return zygote.order_cell(
                kind.plan,
                self._group_parent,
                kind.group,
                stdin=kind.stdin,
                has_keeper=kind.has_keeper,
                execs=kind.execs,
                is_program=kind.is_program,
                waits=waits,
                trees=trees,
                twin=self._twin if kind.names_places else 0,
                sources=kind.sources,
            )

        if kind.overlay is None:
            return order()
        with kind.overlay.copy_tree() as tree:
            return order(tree)

    def _zygote(self, key: ZygoteKey, run: Run, cancelled: int) -> ZygoteProcess:
        """A living zygote or a new one. Starting one takes a while and must not block callers that need another."""
        with self.lock:
            self._check_open()
            share = self._zygotes.get(key)
            if share is None:
                prefix = self._group_parent.prefix if self._group_parent else ()
                share = self._zygotes[key] = shared_zygotes.join(key, prefix)
        zygote = share.zygote(run, cancelled, self._leased)
        self._check_open()  # we may have been closed while it started
        return zygote

    def _check_open(self) -> None:
        if self.is_closed:
            raise BackendUnavailable("the backend was closed", hint="create a new one")

    def pause(self) -> None:
        self._remove_left_groups()
        with self.lock:
            if self._leased and not self.is_closed:
                # Making a cell now would take the processor and the interpreter lock from the run.
                self.changed.wait(_QUIET_SECONDS)

    def _leave_group(self, group: Group) -> None:
        """Keeps the control group for later removal. A few may keep their files open until then."""
        if len(self._left_groups) >= _MOST_LEFT_OPEN:
            group.close_counters()
        self._left_groups.append(group)

    def _remove_left_groups(self) -> None:
        with suppress(IndexError):
            while True:
                self._left_groups.popleft().remove()

    def make_ahead(self, kind: CellKind) -> Cell | None:
        # A cell that will wait rehearses its job, which shortens the run and costs as much again. While runs are in
        # progress or follow closely, it is leased at once, and the processor is better spent on the runs.
        waits = not self._leased and max(self._pause, time.monotonic() - self._idle_since) > _HURRY_SECONDS
        with suppress(SandboxError, OSError):  # the next lease makes a cell itself and reports the error
            if warm_cell_budget.has_place_for(self, self.descriptors_of_a_cell):
                cell = self._make(kind, Run(), waits=waits)
                cell.prepare_for_end()
                return cell
        return None

    def zygote_pids(self) -> list[int]:
        with self.lock:
            return [pid for share in self._zygotes.values() for pid in share.pids]

    def shed(self) -> bool:
        """Ends the warm cells, and leaves the zygotes if none of our cells is in use. Both are made again on demand."""
        has_ended = super().shed()
        return self._leave_zygotes(if_unused=True) or has_ended

    def close(self) -> None:
        self.stop_keeper(_CLOSE_SECONDS)
        self._remove_left_groups()
        super().shed()
        self._leave_zygotes()

    def _leave_zygotes(self, *, if_unused: bool = False) -> bool:
        """Whether this ended any."""
        with self.lock:
            if if_unused and (self._leased or self._pinned or self.is_making):
                return False
            shares, self._zygotes = list(self._zygotes.values()), {}
        ended = [share for share in shares if shared_zygotes.leave(share)]
        if self._has_twin:
            for share in shares:
                share.end_twin(self._twin)
        return bool(ended)

    def end(self, things: list[Cell]) -> None:
        for cell in things:
            cell.close()
