"""Pool: leases cells and makes more in the background. Thread-safe."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import count

from warmcell.core import events
from warmcell.core.errors import BackendUnavailable, EnforcerFailed, SandboxError
from warmcell.core.light import suppress
from warmcell.lifetime import descriptors
from warmcell.lifetime.descriptor_pressure import descriptor_pressure
from warmcell.lifetime.ownership import own_until_exit
from warmcell.lifetime.run import Run
from warmcell.pool.shared_zygotes import ZygoteShare, shared_zygotes
from warmcell.pool.supply import Supply, warm_cell_budget
from warmcell.pool.zygote import DYING_SECONDS, CellKind, ZygoteKey, ZygoteProcess
from warmcell.runner.cell import Cell, CellLost
from warmcell.runner.cgroup_parent import GroupParent
from warmcell.runner.cgroups import Group

_READY_SECONDS = 30.0
_CLOSE_SECONDS = 10.0
_ATTEMPTS = 3
#: The usual causes if cells or their zygote exit without a report.
CELLS_HINT = "allow more descriptors (`ulimit -n`) and processes (`ulimit -u`), or free memory"
#: How long the maker waits for runs in progress to end, before it makes cells.
_QUIET_SECONDS = 0.02
#: Runs that follow each other more closely than this are a burst.
_BURST_SECONDS = 0.005
#: How many groups of used cells may keep their files open until they are removed.
_MOST_OPEN_GROUPS = 2
#: With so many runs in progress, threads compete for the interpreter lock.
_MANY_AT_ONCE = 4
_twin_numbers = count(1)


class Pool(Supply[CellKind, Cell]):
    """The warm cells of one backend. `close` ends them, and the zygotes that no other backend uses.

    In a fork of the program it is empty.
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
        super().abandon()
        self._zygotes: dict[ZygoteKey, ZygoteShare] = {}
        #: The number of the zygotes' twins that serve this pool only, and whether there may be any.
        self._twin, self._has_twin = next(_twin_numbers), False
        #: Groups of used cells, removed after the caller has its result.
        self._old_groups: deque[Group] = deque()
        self._leased = self._pinned = 0
        #: Since when nothing is leased, and how long nothing was leased before the last lease.
        self._idle_since = self._pause = 0.0

    def begin_lease(self) -> None:
        """Called before anything is leased for a run; always followed by `end_lease`."""
        with self.lock:
            if not self._leased:
                self._pause = time.monotonic() - self._idle_since
            self._leased += 1
            if self._leased == _MANY_AT_ONCE:
                descriptors.keep_interpreter_lock()

    def lease(self, kind: CellKind, run: Run, meanwhile: Callable[[], object] | None = None) -> Cell:
        """A cell of that kind for one run, which the caller closes. Cancelling the run ends the wait.

        If none is warm, one is made, and `meanwhile` is called while the zygote works.
        """
        cell = self._take(kind) if kind.is_pooled and self.largest else None
        if events.listeners and (subject := events.current_run()):
            events.emit("cell", subject, {"was_ready": cell is not None})
        if cell is not None:
            return cell
        with run.descriptor() as cancelled:
            return self._make(kind, run, cancelled, meanwhile=meanwhile)

    def end_lease(self) -> None:
        """Called when the leased cell was closed. Wakes the maker.

        The last step of a run, because the maker then competes with the run for the interpreter lock.
        """
        with self.lock:
            self._leased -= 1
            self._idle_since = time.monotonic()
            for share in self._zygotes.values():
                share.forget_ended()
            self.changed.notify()
            has_maker = self.maker is not None
        if not has_maker:
            self._remove_old_groups()

    def pin(self) -> None:
        """Called instead of `end_lease` for a cell that lives long, so that the maker does not wait for its end.

        Zygotes are not shed while a cell is pinned, because it would die with its zygote. The caller calls `unpin` when
        the cell was closed.
        """
        with self.lock:
            self._pinned += 1
        self.end_lease()

    def unpin(self) -> None:
        with self.lock:
            self._pinned -= 1

    def on_slow_run(self) -> None:
        """Called when a run turns out to be long: cells may be made now. During a short run they would slow it down."""
        with self.lock:
            self.changed.notify()

    def _take(self, kind: CellKind) -> Cell | None:
        while True:
            with self.lock:
                self._check_open()
                cell = self.take_ready(kind, time.monotonic())
                if self.maker is None:
                    self.start_maker()
            if cell is None:
                return None
            try:
                if cell.is_alive():
                    cell.dispose_of_group = self._keep_group
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
        """Makes a cell now. Tries again if the zygote died; raises at once if the cage cannot be built."""
        for _ in range(_ATTEMPTS):
            cell = None
            zygote = self._zygote(kind.zygote, run, cancelled)
            try:
                cell = self._order_cell(zygote, kind, waits)
                if meanwhile is not None:
                    meanwhile()
                cell.await_ready(_READY_SECONDS, cancelled)
                if kind.prelude is not None:
                    cell.send_job(kind.prelude)
                return cell
            except BaseException as error:
                if cell is not None:
                    cell.close()
                if not isinstance(error, CellLost):
                    raise
                zygote.await_death(DYING_SECONDS)
        raise EnforcerFailed(kind.zygote.enforcer, "each cell exited before it was ready", hint=CELLS_HINT)

    def _order_cell(self, zygote: ZygoteProcess, kind: CellKind, waits: bool) -> Cell:
        twin = self._twin if kind.has_private_paths else 0
        self._has_twin = self._has_twin or twin > 0
        if kind.overlay is None:
            return zygote.order_cell(kind, self._group_parent, waits=waits, twin=twin)
        with kind.overlay.copy_tree() as tree:
            return zygote.order_cell(kind, self._group_parent, waits=waits, twin=twin, trees=[tree])

    def _zygote(self, key: ZygoteKey, run: Run, cancelled: int) -> ZygoteProcess:
        """A living zygote. The lock is not held while one starts: callers may need another kind."""
        with self.lock:
            self._check_open()
            share = self._zygotes.get(key)
            if share is None:
                prefix = self._group_parent.prefix if self._group_parent else ()
                share = self._zygotes[key] = shared_zygotes.join(key, prefix)
        zygote = share.zygote(run, cancelled, self._leased)
        self._check_open()  # the pool may have been closed meanwhile
        return zygote

    def _check_open(self) -> None:
        if self.is_closed:
            raise BackendUnavailable("the backend was closed", hint="create a new one")

    def pause(self) -> None:
        self._remove_old_groups()
        with self.lock:
            if self._leased and not self.is_closed:
                # Making a cell now would take the processor and the interpreter lock from the run.
                self.changed.wait(_QUIET_SECONDS)

    def _keep_group(self, group: Group) -> None:
        """Keeps the control group for later removal."""
        if len(self._old_groups) >= _MOST_OPEN_GROUPS:
            group.close_counters()
        self._old_groups.append(group)

    def _remove_old_groups(self) -> None:
        with suppress(IndexError):
            while True:
                self._old_groups.popleft().remove()

    def make_ahead(self, kind: CellKind) -> Cell | None:
        # A cell that will wait rehearses its job, which costs as much processor time as it saves the run. In a burst
        # the cell is leased at once and the runs need the processor, so it does not rehearse.
        waits = not self._leased and max(self._pause, time.monotonic() - self._idle_since) > _BURST_SECONDS
        with suppress(SandboxError, OSError):  # the next lease makes a cell itself and reports the error
            if warm_cell_budget.has_room_for(self, self.descriptors_of_a_cell):
                cell = self._make(kind, Run(), waits=waits)
                cell.prepare_for_end()
                return cell
        return None

    def zygote_pids(self) -> list[int]:
        with self.lock:
            return [pid for share in self._zygotes.values() for pid in share.pids]

    def shed(self) -> bool:
        """Ends the warm cells, and leaves the zygotes if none of our cells is in use. Both are made again on demand."""
        had_cells = super().shed()
        return self._leave_zygotes(if_unused=True) or had_cells

    def close(self) -> None:
        self.stop_maker(_CLOSE_SECONDS)
        self._remove_old_groups()
        super().shed()
        self._leave_zygotes()

    def _leave_zygotes(self, *, if_unused: bool = False) -> bool:
        """Leaves all zygotes. Returns whether that ended any."""
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
