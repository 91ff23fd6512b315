"""The ceilings of one run where no cgroup keeps them: what it uses is looked at from time to time, and compared."""

from __future__ import annotations

import time
from resource import struct_rusage
from typing import Dict, List, Set

from ..linux.mounts import is_full
from ..linux.processes import last_pid
from ..plan import LaunchPlan
from . import usage

_SLOWEST_LOOK = 0.1
_SLOWEST_CPU_LOOK = 0.02
_CROWDED_LOOK = 0.01
_FASTEST_GROWTH = 4e9  # bytes per second that a guest might allocate between two looks


class Ceilings:
    """What one run used so far, and what that means. Whoever reaps its processes tells; whoever watches it looks."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._watch = plan.watch
        # Any part of the scratch tmpfs tells how full the whole is.
        self._scratch = plan.scratch_dirs[0][0] if plan.scratch_dirs else ""
        #: With init, which is one of them; 0: no limit.
        self._most_tasks = dict(plan.rlimits).get("nproc", 0) if self._scratch else 0
        #: The ceiling at which the run must end.
        self.verdict = ""
        #: Limits that the kernel keeps by refusing, which it tells nobody but the guest: "processes", "disk".
        self.met: Set[str] = set()
        self.peak = 0
        self._cpu = 0.0
        self._disk_at_start = usage.DiskUse(0, 0, True)
        #: What living processes had used when last seen; one that vanishes unwaited keeps that on the bill.
        self._cpu_seen: Dict[int, float] = {}
        self._cpu_lost = 0.0
        self._waited: Set[int] = set()
        self._next_disk_look = 0.0

    @property
    def is_watching(self) -> bool:
        return bool(self._watch.memory_bytes or self._watch.cpu_seconds or self._watch.disk_bytes)

    @property
    def cpu(self) -> float:
        return self._cpu + self._cpu_lost

    def start(self) -> None:
        self._disk_at_start = usage.disk_use(self._watch.disk_paths, [])

    def add(self, pid: int, used: struct_rusage) -> None:
        """One of its processes was reaped."""
        self._cpu += used.ru_utime + used.ru_stime
        self._waited.add(pid)
        self.peak = max(self.peak, used.ru_maxrss * 1024)

    def look(self, pids: List[int]) -> float:
        """Compares use with the ceilings; returns for how many seconds it is safe not to look."""
        pause = min(_SLOWEST_LOOK, self._look_at_limits(pids))
        if self._watch.memory_bytes:
            used = usage.memory_bytes(pids, self._scratch, self._watch.memory_bytes)
            self.peak = max(self.peak, used)
            if used > self._watch.memory_bytes:
                self.verdict = "memory"
            pause = min(pause, max((self._watch.memory_bytes - used) / _FASTEST_GROWTH, 0.002))
        if self._watch.cpu_seconds:
            pause = min(pause, _SLOWEST_CPU_LOOK)
            if self._cpu_used(pids) > self._watch.cpu_seconds:
                self.verdict = "cpu"
        if self._watch.disk_bytes and time.monotonic() >= self._next_disk_look:
            started = time.monotonic()
            if self._disk_grown(pids) > self._watch.disk_bytes:
                self.verdict = "disk"
            # A large tree is looked at less often, so that looking never costs more than a tenth of the time.
            self._next_disk_look = time.monotonic() + max(0.25, 10 * (time.monotonic() - started))
        return pause

    def last_look(self, pids: List[int]) -> None:
        """When the guest has ended, and what it left behind is still there."""
        self._look_at_limits(pids)
        # As many pids were given out as there may be tasks, and not one more: it was refused the next. Where tasks
        # have come and gone the numbers go on, and only a look at the right time tells.
        if self._most_tasks and last_pid() == self._most_tasks:
            self.met.add("processes")
        if self._watch.disk_bytes and not self.verdict and self._disk_grown(pids) > self._watch.disk_bytes:
            self.met.add("disk")

    def _look_at_limits(self, pids: List[int]) -> float:
        if self._scratch and is_full(self._scratch):
            self.met.add("disk")
        if not self._most_tasks or last_pid() < self._most_tasks:
            return _SLOWEST_LOOK
        tasks = 1 + usage.tasks(pids)
        if tasks >= self._most_tasks:
            self.met.add("processes")
        return _CROWDED_LOOK if 2 * tasks > self._most_tasks else _SLOWEST_LOOK

    def _cpu_used(self, pids: List[int]) -> float:
        """A child that nobody waits for (SIGCHLD ignored) is on nobody's account but this one."""
        now = {pid: usage.cpu_seconds([pid]) for pid in pids}
        self._cpu_lost += sum(
            used for pid, used in self._cpu_seen.items() if pid not in now and pid not in self._waited
        )
        self._waited.clear()
        self._cpu_seen = now
        return self.cpu + sum(now.values())

    def _disk_grown(self, pids: List[int]) -> int:
        before, now = self._disk_at_start, usage.disk_use(self._watch.disk_paths, pids)
        grown = now.held - before.held
        # What cannot be looked into still shows in how full its file system is, if less exactly.
        return grown if now.is_complete else max(grown, now.filesystem - before.filesystem)
