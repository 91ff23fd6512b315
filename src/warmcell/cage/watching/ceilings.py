"""Ceilings of one tree of processes, kept by looking."""

from __future__ import annotations

import os
from math import inf

from ..plan import Watch
from ..records import NamedTuple
from . import usage
from .descriptors import Descriptors, Held, shares_of_one_guest
from .disk_ceiling import DiskCeiling
from .mappings import Mappings
from .patience import Patience, TooLong
from .pauses import FASTEST_LOOK, SLOWEST_LOOK, pause_before_look
from .stillness import Stillness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Sequence, Set

_CROWDED_LOOK = 0.01
#: A look at a tree that was made too large to look at: what takes longer, twice in a row, counts as over the ceiling.
#: Time of ours on the processor, and on the clock. Once is what a stall of the host's disk or of its own host does.
_LONGEST_LOOK = (0.25, 1.0)
_MOST_LONG_LOOKS = 2
#: Whoever forks and ends all the time is looked for as often as this.
_MOST_LISTINGS = 4


class Tree(NamedTuple):
    """The processes in question, and where the kernel tells of them."""

    proc: str
    pids: Callable[[], List[int]]
    #: Memory that no process has mapped, in namespaces of the tree's own.
    stores: Callable[[List[int], Patience], int]
    disk_paths: Sequence[str]


class Ceilings:
    """`look` as often as it says. Once `verdict` has a word, the tree must end."""

    def __init__(self, watch: Watch, tree: Tree, most_tasks: int = 0) -> None:
        self._watch = watch
        self._tree = tree
        self._most_tasks = most_tasks
        self.verdict = ""
        #: Limits that the kernel keeps by refusing, which it tells nobody but the guest: "processes", "disk".
        self.met: Set[str] = set()
        self.peak = 0
        #: Processor time that is on nobody's account any more.
        self.cpu_lost = 0.0
        self.mappings = Mappings()
        self._descriptors = Descriptors()
        self._shares = shares_of_one_guest() if watch.descriptors else Held()
        self._cpu_seen: Dict[int, usage.CpuTime] = {}
        self._disk = DiskCeiling(watch.disk_bytes, tree.disk_paths) if watch.disk_bytes else None
        self._stillness = Stillness(tree.proc)
        self._long_looks = 0
        #: How long it is safe not to look, by what the last look has seen.
        self._pause = FASTEST_LOOK

    @property
    def is_measured(self) -> bool:
        """Whether it is known what was there before the guest."""
        return self._disk is None or self._disk.is_measured

    def measure(self, seconds: float = inf) -> bool:
        """Before the guest's code, so that nothing of its own is taken for what was there. Whether that is known by
        then; it goes on with the next call.
        """
        return self._disk is None or self._disk.measure(seconds)

    def begin(self) -> float:
        """When the guest's code begins; returns how long it is safe not to look."""
        pause = pause_before_look(self._watch)
        return min(pause, self._disk.pause()) if self._disk else pause

    def look(self) -> float:
        """Compares use with the ceilings; returns how long it is safe not to look."""
        if self._stillness.goes_on() and self._has_seen_all():
            return self._pause_when_still()
        pids = self._tree.pids()
        if self._stillness.is_kept(pids) and self._has_seen_all():
            return self._pause_when_still()
        used = self._look_at_what_is_held(pids)
        if self._watch.cpu_seconds and self._cpu_used(pids) > self._watch.cpu_seconds:
            self.verdict = self.verdict or "cpu"
        self._pause = min(pause_before_look(self._watch, used), self._look_at_tasks(pids))
        return min(FASTEST_LOOK if self._long_looks else self._pause, self._look_at_disk(pids))

    def _pause_when_still(self) -> float:
        return min(self._pause, self._disk.pause()) if self._disk else self._pause

    def _has_seen_all(self) -> bool:
        """Whether the last looks saw everything as it has been since nobody runs."""
        return not self._long_looks and (self._disk is None or self._disk.has_seen_all_since(self._stillness.began))

    def _look_at_disk(self, pids: List[int]) -> float:
        if self._disk is None:
            return SLOWEST_LOOK
        # What is in descriptors that are in flight nobody can look at.
        pause = self._disk.look(self._tree.proc, pids, hides=bool(self._descriptors.last.in_flight))
        if self._disk.is_over:
            self.verdict = self.verdict or "disk"
        return min(SLOWEST_LOOK, pause)

    def _look_at_tasks(self, pids: List[int]) -> float:
        if not self._most_tasks:
            return SLOWEST_LOOK
        tasks = 1 + usage.tasks(self._tree.proc, pids)
        if tasks >= self._most_tasks:
            self.met.add("processes")
        return _CROWDED_LOOK if 2 * tasks > self._most_tasks else SLOWEST_LOOK

    def _look_at_what_is_held(self, pids: List[int]) -> int:
        patience = Patience(*_LONGEST_LOOK)
        try:
            used = self._memory_of(pids, patience) if self._watch.memory_bytes else 0
            is_over_share = self._is_over_share(pids, patience)
        except TooLong:
            self._long_looks += 1
            if self._long_looks == _MOST_LONG_LOOKS:
                self.verdict = self.verdict or ("memory" if self._watch.memory_bytes else "descriptors")
            return self.peak
        self._long_looks = 0
        self.peak = max(self.peak, used)
        if self._watch.memory_bytes and used > self._watch.memory_bytes:
            self.verdict = self.verdict or "memory"
        if is_over_share:
            self.verdict = self.verdict or "descriptors"
        return used

    def _is_over_share(self, pids: List[int], patience: Patience) -> bool:
        """What is in flight matters to the disk's ceiling too: it may be files without a name."""
        if not (self._watch.descriptors or self._watch.disk_bytes):
            return False
        held = self._descriptors.held(self._tree.proc, pids, patience)
        return self._watch.descriptors and held.is_more_than_its_share(self._shares)

    def _memory_of(self, pids: List[int], patience: Patience) -> int:
        """The most that any listing shows: memory can be handed on to a child that an earlier one does not name."""
        used = 0
        seen: Set[int] = set()
        for _ in range(_MOST_LISTINGS):
            used = max(used, self._memory_now(pids, patience))
            seen.update(pids)
            pids = self._tree.pids()
            if seen.issuperset(pids):
                break
        return used

    def _memory_now(self, pids: List[int], patience: Patience) -> int:
        used = self._tree.stores(pids, patience)
        used += self.mappings.held(self._tree.proc, pids, patience)
        used += self._descriptors.held(self._tree.proc, pids, patience).memory
        room = max(0, self._watch.memory_bytes - used)
        return used + usage.processes_memory(self._tree.proc, pids, room, patience)

    def _cpu_used(self, pids: List[int]) -> float:
        """A child that nobody waits for (SIGCHLD ignored, or left to init) is on nobody's account but this one."""
        now = usage.cpu_times(self._tree.proc, pids)
        for pid, seen in self._cpu_seen.items():
            if pid in now:
                continue
            parent, before = now.get(seen.parent), self._cpu_seen.get(seen.parent)
            was_waited_for = parent is not None and before is not None and parent.waited > before.waited
            if not was_waited_for:
                self.cpu_lost += seen.own + seen.waited
        self._cpu_seen = now
        return self.cpu_lost + sum(time.own + time.waited for time in now.values())

    def close(self) -> None:
        self._stillness.close()

    def last_look(self) -> None:
        """After the end: what was written between the last look and that counts."""
        if self._disk is not None and not self.verdict and self._disk.has_grown_at_the_end():
            self.met.add("disk")


def numbered(names: List[str]) -> List[int]:
    """The processes in a listing of /proc, apart from the first, which is ours."""
    return [int(name) for name in names if name.isdigit() and name != "1"]


def processes_in(proc: str) -> List[int]:
    return numbered(os.listdir(proc))
