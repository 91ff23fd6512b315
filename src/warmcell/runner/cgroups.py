"""The control group of one cell, version 2 or 1: limits that the kernel enforces for all processes of a run.

The supervisor makes a group per cell, the cell joins it, and the supervisor reads its counters and removes it.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from functools import partial

from warmcell.cage.linux import kernel_files
from warmcell.cage.records import NamedTuple
from warmcell.core.light import closing_fd, suppress
from warmcell.core.records import dataclass
from warmcell.lifetime.descriptors import Descriptors, is_shortage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:  # the C module, which loads faster
    import _signal as signal

ROOT = "/sys/fs/cgroup"
_REMOVAL_SECONDS = 10.0
_PERIOD_MICROSECONDS = 100_000
_COUNTER_BYTES = 4096  # more than any of these files has
#: Read at the end of a run, by controller: peak memory, CPU time, kills, and refused processes.
_COUNTERS_1 = (
    ("memory", "memory.max_usage_in_bytes"),
    ("cpuacct", "cpuacct.usage"),
    ("memory", "memory.oom_control"),
    ("pids", "pids.events"),
)
_COUNTERS_2 = (("", "memory.peak"), ("", "cpu.stat"), ("", "memory.events"), ("", "pids.events"))
_ALL, _TIME = slice(4), slice(1, 2)
#: Errors that mean that a group or file is gone or never existed. Any other error is ours.
_NOT_THERE = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.EACCES)


class GroupLimits(NamedTuple):
    """What all processes of a cell may use together."""

    memory_bytes: int
    processes: int
    cpus: float | None = None


@dataclass(frozen=True, slots=True)
class KernelUsage:
    """What a cgroup counted; zeros without one."""

    peak_memory: int = 0
    cpu_time: float = 0.0
    memory_kills: int = 0
    process_refusals: int = 0
    #: Out-of-memory kills that were not caused by the limit of this run.
    outside_kills: int = 0


class Group:
    """The group of one cell, below `directories`: one with the key "" for version 2, one per controller for version 1.

    The owner calls `remove` when its processes have ended. `add_weight` adds a number of tasks to the common weight of
    all groups below `directories`.
    """

    def __init__(
        self,
        directories: dict[str, str],
        name: str,
        limits: GroupLimits,
        add_weight: Callable[[int], object] = lambda tasks: None,
    ) -> None:
        self._is_version_2 = "" in directories
        self._paths = {controller: f"{base}/{name}" for controller, base in directories.items()}
        self._opened = Descriptors()
        self._add_weight, self._has_weight = add_weight, False
        #: Descriptors in the order of the tables above; -1 if this kernel does not have the file.
        self._counters: list[int] = []
        try:
            for path in dict.fromkeys(self._paths.values()):  # cpu and cpuacct are often one hierarchy
                os.mkdir(path, 0o755)
            if self._is_version_2:
                self._limit_version_2(limits)
            else:
                self._limit_version_1(limits)
        except OSError:
            self.remove()
            raise

    def _limit_version_2(self, limits: GroupLimits) -> None:
        self._write("", "memory.max", limits.memory_bytes)
        # All or nothing: a run that lost only one of its processes would go on in a broken state.
        self._write("", "memory.oom.group", 1)
        # Without this, a guest could use all swap of the host on top of its memory.
        self._write("", "memory.swap.max", 0, is_optional=True)
        self._write("", "pids.max", limits.processes)
        if limits.cpus:
            self._write("", "cpu.max", f"{_quota(limits.cpus)} {_PERIOD_MICROSECONDS}")

    def _limit_version_1(self, limits: GroupLimits) -> None:
        self._write("memory", "memory.limit_in_bytes", limits.memory_bytes)
        if not self._write("memory", "memory.memsw.limit_in_bytes", limits.memory_bytes, is_optional=True):
            # The kernel does not count swap, so the guest must not use any.
            self._write("memory", "memory.swappiness", 0, is_optional=True)
        # Version 1 counts TCP buffers separately.
        self._write("memory", "memory.kmem.tcp.limit_in_bytes", limits.memory_bytes // 4, is_optional=True)
        self._write("pids", "pids.max", limits.processes)
        if limits.cpus:
            self._write("cpu", "cpu.cfs_quota_us", _quota(limits.cpus))

    def _write(self, controller: str, name: str, value: object, is_optional: bool = False) -> bool:
        """Writes a file of the group. Returns False if it is optional and the kernel does not have it."""
        path = f"{self._paths[controller]}/{name}"
        if is_optional and not os.path.exists(path):
            return False
        with closing_fd(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)) as descriptor:
            os.write(descriptor, str(value).encode())
        return True

    def join_paths(self) -> list[str]:
        """The files that a cell writes to in order to join. We open them, because the cell cannot see them.

        Moving a whole process takes a kernel lock, which costs ten milliseconds. Version 1 can move a single thread
        without it, and a cell has only one when it joins.
        """
        name = "cgroup.procs" if self._is_version_2 else "tasks"
        return [f"{path}/{name}" for path in dict.fromkeys(self._paths.values())]

    def open_counters(self) -> None:
        """Opens the counters while the cell waits, so that `usage`, at the end of a run, only has to read."""
        with suppress(OSError):  # no descriptors left
            self._counters = [self._open_counter(path) for path in self._counter_paths()]

    def _open_counter(self, path: str) -> int:
        try:
            return self._opened.open(partial(os.open, path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            return -1

    def close_counters(self) -> None:
        self._counters = []
        self._opened.close()

    def _counter_paths(self) -> list[str]:
        counters = _COUNTERS_2 if self._is_version_2 else _COUNTERS_1
        return [f"{self._paths[controller]}/{name}" for controller, name in counters]

    def usage(self) -> KernelUsage:
        """Reads all counters in few system calls: the caller waits for the end of a run."""
        peak, time_used, memory, pids = self._read_counters(_ALL)
        kills = _value_of(memory, b"oom_kill")
        # Without an event of our own limit, a kill was caused by a limit above this group or by the host.
        is_own = kills > 0 and (not self._is_version_2 or _value_of(memory, b"oom") > 0)
        return KernelUsage(
            int(peak or 0),  # version 2 has it since Linux 5.19; for 0 the manager's figure is used
            self._seconds(time_used),
            kills if is_own else 0,
            _value_of(pids, b"max"),
            0 if is_own else kills,
        )

    def cpu_seconds(self) -> float:
        return self._seconds(*self._read_counters(_TIME))

    def _seconds(self, time_used: bytes) -> float:
        return _value_of(time_used, b"usage_usec") / 1e6 if self._is_version_2 else int(time_used or 0) / 1e9

    def _read_counters(self, which: slice) -> list[bytes]:
        """The content of those files; b"" for one that does not exist."""
        try:
            if self._counters:
                counters = self._counters[which]
                return [os.pread(counter, _COUNTER_BYTES, 0) if counter >= 0 else b"" for counter in counters]
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
        return [read(path, kernel_files.read_short).encode() for path in self._counter_paths()[which]]

    def add_task_weight(self) -> None:
        """Adds the weight of one task until the group is removed, because its processes wait for a processor."""
        if not self._has_weight:
            self._has_weight = True
            self._add_weight(1)

    def remove(self) -> None:
        """Kills remaining members and removes the group."""
        if self._has_weight:
            self._has_weight = False
            self._add_weight(-1)
        self.close_counters()
        for path in dict.fromkeys(self._paths.values()):
            remove_group(path)


def _value_of(text: bytes, key: bytes) -> int:
    """The number after `key` in a file with one key and number per line; 0 if the key is missing."""
    _, _, after = (b"\n" + text).partition(b"\n" + key + b" ")
    return int(after.partition(b"\n")[0] or 0)


def _quota(cpus: float) -> int:
    """Microseconds per period; the kernel's minimum is a thousand."""
    return max(int(cpus * _PERIOD_MICROSECONDS), 1000)


def remove_group(path: str, seconds: float = _REMOVAL_SECONDS) -> None:
    """Removes a group and kills its members. A group stays busy for a moment after its last process was reaped."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            os.rmdir(path)
            return
        except OSError as error:
            if error.errno != errno.EBUSY and not is_shortage(error):
                return
        if time.monotonic() > deadline:
            return
        _kill_members(path)
        time.sleep(0.002)


def _kill_members(path: str) -> None:
    try:
        kernel_files.write(f"{path}/cgroup.kill", "1")
    except OSError:  # version 1, or before Linux 5.14
        try:
            found = members(path)
        except OSError:  # no descriptors left
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def members(path: str) -> list[int]:
    """The members' pids, without those of other pid namespaces, which the kernel lists as 0."""
    return [int(pid) for pid in read(f"{path}/cgroup.procs").split() if pid != "0"]


def read(path: str, reader: Callable[[str], str] = kernel_files.read) -> str:
    """The content of a file of a group, which may be removed at any time: then "". Raises if descriptors run out."""
    try:
        return reader(path)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return ""


def groups_of(pid: int | None = None) -> dict[str, str]:
    """The group of this or another process by controller, relative to `ROOT`; the key "" is version 2."""
    paths: dict[str, str] = {}
    for line in kernel_files.read(f"/proc/{pid or 'self'}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths
