"""Limits on one tree of processes, enforced by measuring repeatedly."""

from __future__ import annotations

import os
import stat
import time
from math import inf

from ..fast_imports import lru_cache, partial
from ..linux.namespaces import CLONE_NEWIPC, HomeNamespace
from ..linux.processes import expected_errors
from ..linux.syscalls import call
from ..plan import Watch
from ..records import NamedTuple
from . import usage
from .disk import DiskCeiling
from .idle_check import IdleCheck
from .kernel_memory import DescriptorTable, DescriptorUse, Locks, Mappings, share_of_one_guest
from .patience import (
    FASTEST_LOOK,
    LONGEST_PAUSE,
    SLOWEST_LOOK,
    Patience,
    Spent,
    TooLong,
    next_look_after,
    pause_before_first_look,
    pause_before_look,
)
from .patterns import compile_all as compile_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Sequence, Set

    from .gpu_use import GpuUse

_CROWDED_LOOK = 0.01
#: The longest look, in processor time and in wall time. A guest exceeds its ceiling if two looks in a row take longer:
#: it is too large to measure. A single one may be a stall of the host.
_LONGEST_LOOK = (0.25, 1.0)
_MOST_LONG_LOOKS = 2
#: How often one look lists the processes of a guest that keeps forking.
_MOST_LISTINGS = 4


class Network(NamedTuple):
    """The /proc directory of the tree's network namespace, and whether that belongs to the tree alone."""

    path: str
    is_own: bool


class Tree(NamedTuple):
    """The processes to measure, and the /proc that shows them."""

    proc: str
    pids: Callable[[], List[int]]
    #: Bytes in the tree's own namespaces that need not be mapped by a process.
    stores: Callable[[List[int], Patience], int]
    disk_paths: Sequence[str]
    network: Network


class Ceilings:
    """The limits of one tree. `look` returns when to call it again. Once `verdict` is set, the tree must be killed."""

    def __init__(self, watch: Watch, tree: Tree, most_tasks: int = 0) -> None:
        self._watch, self._tree, self._most_tasks = watch, tree, most_tasks
        self.verdict = ""
        #: Limits that the kernel enforces by an error that only the guest sees: "processes", "disk".
        self.met: Set[str] = set()
        self.peak = 0
        #: The most file pages that one process had mapped at any look. -1: not measured.
        self.mapped_files = -1
        #: Processor time of children that no process waited for.
        self.cpu_lost = 0.0
        #: Processor time of the guest's first process after its end. The manager, which reaps it, reports it.
        self._cpu_of_first = 0.0
        #: None: the guest has no GPU, or its use cannot be measured.
        self.gpu: Optional[GpuUse] = None
        self.mappings = Mappings()
        self._descriptors = DescriptorTable(tree.proc, tree.network.path, tree.network.is_own)
        self._share = share_of_one_guest() if watch.descriptors else DescriptorUse()
        self._cpu_seen: Dict[int, usage.CpuTime] = {}
        self._disk = self._new_disk()
        self._idle = IdleCheck(tree.proc, tree.network.path)
        self._long_looks = 0
        self._next_exact_look = 0.0
        #: When the last complete look began.
        self._looked = -inf
        #: The pause that the last look allows.
        self._pause = FASTEST_LOOK

    def _new_disk(self) -> Optional[DiskCeiling]:
        watch = self._watch
        if not watch.disk_bytes:
            return None
        paths = (self._tree.disk_paths, watch.overlays, watch.disk_totals)
        return DiskCeiling(watch.disk_bytes, *paths, watch.disk_devices)

    @property
    def is_measured(self) -> bool:
        """Whether the disk use before the guest started is known."""
        return self._disk is None or self._disk.is_measured

    def measure(self, seconds: float = inf) -> bool:
        """Measure disk use before the guest's code starts. False if time ran out: call it again to continue."""
        return self._disk is None or self._disk.measure(seconds)

    def measure_again(self) -> None:
        """Forget what was measured, because the host may have written since. Call `measure` next."""
        self._disk = self._new_disk()

    def begin(self) -> float:
        """Call it when the guest's code starts. Returns the pause before the first look."""
        pause = pause_before_first_look(self._watch)
        return min(pause, self._disk.pause()) if self._disk else pause

    def look(self) -> float:
        """Compare use with the limits; returns the pause before the next look."""
        if self._has_seen_all and self._idle.is_still_idle():
            return self._look_when_idle()
        pids = self._tree.pids()
        if self._idle.is_idle(pids) and self._has_seen_all:
            return self._look_when_idle()
        self._looked = time.monotonic()
        used = self._look_at_memory_and_descriptors(pids)
        if self._watch.cpu_seconds and self._cpu_used(pids) > self._watch.cpu_seconds:
            self.verdict = self.verdict or "cpu"
        self._look_at_gpus()
        self._pause = min(pause_before_look(self._watch, used), self._look_at_tasks(pids))
        return min(FASTEST_LOOK if self._long_looks else self._pause, self._look_at_disk(pids))

    @property
    def _has_seen_all(self) -> bool:
        """Whether everything was measured since the tree is idle: costly measurements are not part of each look."""
        all_due = self._idle.since + LONGEST_PAUSE
        return not self._long_looks and (self._looked > all_due or time.monotonic() <= all_due)

    def _look_when_idle(self) -> float:
        """Measure what the last complete look may have missed: files, until a walk began after the tree was idle."""
        self._look_at_gpus()  # a device may be busy while all threads wait for it
        if self._disk is None or not self._disk.is_measured:
            return self._pause
        if self._disk.has_seen_all_since(self._idle.since):
            return min(self._pause, self._disk.pause())
        return min(self._pause, self._look_at_disk(self._tree.pids()))

    def _look_at_disk(self, pids: List[int]) -> float:
        if self._disk is None or not self._disk.is_measured:
            return SLOWEST_LOOK
        # Files behind descriptors in flight cannot be seen.
        pause = self._disk.look(self._tree.proc, pids, hides=bool(self._descriptors.last.in_flight))
        if self._disk.is_over:
            self.verdict = self.verdict or "disk"
        return min(SLOWEST_LOOK, pause)

    def _look_at_gpus(self) -> None:
        if self.gpu is None:
            return
        try:
            used = self.gpu.look()
        except OSError:
            self.lose_gpus()
            return
        if 0 < self._watch.gpu_memory_bytes < used:
            self.verdict = self.verdict or "gpu memory"

    def lose_gpus(self) -> None:
        """Called when GPU use cannot be read: end the guest if it is limited."""
        self.gpu = None
        if self._watch.gpu_memory_bytes:
            self.verdict = self.verdict or "gpu unreadable"

    def _look_at_tasks(self, pids: List[int]) -> float:
        if not self._most_tasks:
            return SLOWEST_LOOK
        tasks = 1 + usage.tasks(self._tree.proc, pids)
        if tasks >= self._most_tasks:
            self.met.add("processes")
        return _CROWDED_LOOK if 2 * tasks > self._most_tasks else SLOWEST_LOOK

    def _look_at_memory_and_descriptors(self, pids: List[int]) -> int:
        patience = Patience(*_LONGEST_LOOK, counts_stolen=self._long_looks > 0)  # this one decides
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
        """Descriptors in flight also matter to the disk ceiling: they may be unlinked files."""
        if not (self._watch.descriptors or self._watch.disk_bytes):
            return False
        used = self._descriptors.look(pids, patience)
        return self._watch.descriptors and used.exceeds(self._share)

    def _memory_of(self, pids: List[int], patience: Patience) -> int:
        """The maximum over several listings: memory may be passed to a child that an earlier listing does not have."""
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
        used += self.mappings.memory(self._tree.proc, pids, patience)
        used += self._descriptors.look(pids, patience).memory
        room = max(0, self._watch.memory_bytes - used)
        found = usage.processes_memory(self._tree.proc, pids, room, patience)
        self.mapped_files = max(self.mapped_files, found.mapped_files)
        return used + max(found.own, found.tables + self._exact_memory(pids, room - found.own, patience))

    def _exact_memory(self, pids: List[int], room: int, patience: Patience) -> int:
        """What they use if that may be `room` more than the counters say, else 0. Takes at most a tenth of the time."""
        if not 0 <= room <= len(pids) * usage.KEPT_BACK or time.monotonic() < self._next_exact_look:
            return 0
        spent = Spent()
        used = usage.exact_memory(self._tree.proc, pids, patience)
        self._next_exact_look = next_look_after(spent)
        return used

    def _cpu_used(self, pids: List[int]) -> float:
        """Includes children that no process waited for (SIGCHLD ignored, or orphans): no parent has their time."""
        now = usage.cpu_times(self._tree.proc, pids)
        for pid, seen in self._cpu_seen.items():
            if pid in now:
                continue
            if seen.parent == 0:  # its parent is outside of the cell's pid namespace
                self._cpu_of_first += seen.own + seen.waited
                continue
            parent, before = now.get(seen.parent), self._cpu_seen.get(seen.parent)
            was_waited_for = parent is not None and before is not None and parent.waited > before.waited
            if not was_waited_for:
                self.cpu_lost += seen.own + seen.waited
        self._cpu_seen = now
        return self.cpu_lost + self._cpu_of_first + sum(time.own + time.waited for time in now.values())

    def close(self) -> None:
        self._idle.close()

    def look_at_end(self, seconds: float = inf) -> bool:
        """Measure what was written since the last look. Call it after the tree has ended.

        False if time ran out: call it again to continue.
        """
        if self._disk is None or self.verdict:
            return True
        if not self._disk.look_at_end(seconds):
            return False
        if self._disk.is_over:
            self.met.add("disk")
        return True


# ---- of one cell ----


def make_ceilings(watch: Watch, most_tasks: int, init: int, processes: int, scratch: int) -> Ceilings:
    """The limits of the cell with these descriptors, which the caller keeps open."""
    proc = f"/proc/self/fd/{processes}"
    # That of init: other processes may be the manager's (see guest_pids).
    network = Network(f"{proc}/1/net", has_own_network(f"{proc}/1"))
    is_of_cell = partial(_has_pid_namespace, _namespace(f"{proc}/1", "pid"))
    locks = Locks(lambda owner, pids: is_of_cell(owner), os.fstat(scratch).st_dev)
    stores = partial(_memory_outside_processes, init, scratch, locks, network)
    pids = partial(guest_pids, proc, _namespace("/proc/self", "user"))
    ceilings = Ceilings(watch, Tree(proc, pids, stores, watch.disk_paths, network), most_tasks)
    if watch.gpus:
        from . import gpu_use  # loads ctypes, and the driver's library

        try:
            ceilings.gpu = gpu_use.GpuUse(gpu_use.load(), watch.gpus, is_of_cell, lambda: _has_gpu_open(proc, pids()))
        except OSError:
            ceilings.lose_gpus()
    return ceilings


#: The major number of NVIDIA's devices.
_NVIDIA = 195


def _has_gpu_open(proc: str, pids: List[int]) -> bool:
    for pid in pids:
        with expected_errors:  # it has exited, or closed a descriptor
            place, names = usage.descriptors(f"{proc}/{pid}")
            found = [os.stat(f"{place}/fd/{name}") for name in names]
            if any(stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) == _NVIDIA for status in found):
                return True
    return False


def _has_pid_namespace(pid_namespace: int, pid: int) -> bool:
    return pid_namespace != 0 and _namespace(f"/proc/{pid}", "pid") == pid_namespace


def guest_pids(proc: str, manager_users: int) -> List[int]:
    """The guest's processes in a cell's /proc: all but init and those of the manager's user namespace.

    The manager starts processes in the cell's pid namespace (see `next_pid`), which share the manager's memory and
    other namespaces. A guest has its own user namespace and cannot leave it.
    """
    pids = [int(name) for name in os.listdir(proc) if name.isdigit() and name != "1"]
    return [pid for pid in pids if _namespace(f"{proc}/{pid}", "user") != manager_users]


def has_own_network(base: str) -> bool:
    """Whether the process has another network namespace than ours, in which sockets are the host's."""
    return _namespace(base, "net") not in (0, _namespace("/proc/self", "net"))


def _namespace(base: str, kind: str) -> int:
    """Its inode number; 0 if it cannot be read, as for a thread group whose first thread has ended."""
    with expected_errors:
        return os.stat(f"{base}/ns/{kind}").st_ino
    return 0


def _memory_outside_processes(
    init: int, scratch: int, locks: Locks, network: Network, pids: List[int], patience: Patience
) -> int:
    """The scratch tmpfs, System V objects, locks and socket queues. System V objects are visible only inside."""
    home = _own_ipc()
    home.enter(init)
    try:
        objects = usage.system_v_objects()
    finally:
        home.return_home()  # a namespace with a member, and all objects in it, would outlive its cell
    total = usage.tmpfs_use(scratch) + objects + locks.memory(pids, patience)
    return total + (usage.socket_buffers(network.path) if network.is_own else 0)


@lru_cache(maxsize=1)
def _own_ipc() -> HomeNamespace:
    """A namespace of the watcher's own: an ordinary user cannot return to the host's."""
    call("unshare", CLONE_NEWIPC)
    return HomeNamespace("ipc")
