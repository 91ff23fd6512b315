"""Control groups, version 2 or 1: limits that the kernel keeps for the whole tree.

`join` is for the cage. The rest is for the supervisor, which makes a group per cell, reads it and removes it.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from . import kernel_files
from .namespaces import CLONE_NEWCGROUP
from .syscalls import call

ROOT = "/sys/fs/cgroup"
_REMOVAL_SECONDS = 2.0
_PERIOD = 100_000


def join(descriptors: Iterable[int]) -> None:
    """Moves this process into groups whose `cgroup.procs` were opened outside, and hides what is above them."""
    for descriptor in descriptors:
        os.write(descriptor, b"0")
    try:
        call("unshare", CLONE_NEWCGROUP)
    except OSError as error:
        if error.errno != errno.EPERM:  # the classes without namespaces have no right to one
            raise


class Home(NamedTuple):
    """Where this process may make groups: one directory (v2) or one per controller (v1)."""

    version: int
    directories: Dict[str, str]
    #: Whether cells can be given a share of the processors.
    has_cpu: bool = True
    #: What the command of a zygote must begin with, for its cells to be allowed to join groups in there.
    prefix: Tuple[str, ...] = ()

    @property
    def mechanism(self) -> str:
        return f"cgroup v{self.version}"


class GroupLimits(NamedTuple):
    memory_bytes: int
    processes: int
    cpus: Optional[float] = None


class GroupUsage(NamedTuple):
    peak_memory_bytes: int
    cpu_seconds: float
    memory_kills: int
    process_refusals: int
    #: Kills by a limit above the group, or by a host without memory.
    outside_kills: int = 0


class Group:
    """One cell's group. `remove` is called when its processes are gone."""

    def __init__(self, home: Home, name: str, limits: GroupLimits) -> None:
        from . import cgroup_homes  # the supervisor's business: cages need not load it

        self._home = cgroup_homes.current(home)
        self._paths = {controller: f"{base}/{name}" for controller, base in self._home.directories.items()}
        try:
            for path in dict.fromkeys(self._paths.values()):  # cpu and cpuacct are often one hierarchy
                os.mkdir(path, 0o755)
            self._limit(limits)
        except OSError:
            self.remove()
            raise

    def _limit(self, limits: GroupLimits) -> None:
        if self._home.version == 2:
            self._write("", "memory.max", limits.memory_bytes)
            self._write("", "memory.oom.group", 1)
            self._write("", "memory.swap.max", 0, optional=True)
            self._write("", "pids.max", limits.processes)
            if limits.cpus:
                self._limit_cpu(_quota(limits.cpus))
            return
        self._write("memory", "memory.limit_in_bytes", limits.memory_bytes)
        self._write("memory", "memory.memsw.limit_in_bytes", limits.memory_bytes, optional=True)
        # Version 1 keeps what TCP buffers apart from the rest, on an account of its own.
        self._write("memory", "memory.kmem.tcp.limit_in_bytes", limits.memory_bytes // 4, optional=True)
        self._write("pids", "pids.max", limits.processes)
        if limits.cpus:
            self._write("cpu", "cpu.cfs_quota_us", _quota(limits.cpus))

    def _limit_cpu(self, quota: int) -> None:
        if not self._home.has_cpu:
            raise OSError(errno.ENOTSUP, "a share of the processors needs the cpu controller", self._paths[""])
        self._write("", "cpu.max", f"{quota} {_PERIOD}")

    def _write(self, controller: str, name: str, value: object, optional: bool = False) -> None:
        path = f"{self._paths[controller]}/{name}"
        if optional and not os.path.exists(path):
            return
        with open(path, "w") as file:
            file.write(str(value))

    def ways_in(self) -> List[str]:
        """The files through which the cell joins by itself.

        Moving a whole process takes a lock of the kernel's that costs ten milliseconds; the one thread that a cell has
        when it joins moves without it, where version 1 lets single threads move.
        """
        name = "tasks" if self._home.version == 1 else "cgroup.procs"
        return [f"{path}/{name}" for path in dict.fromkeys(self._paths.values())]

    def usage(self) -> GroupUsage:
        if self._home.version == 2:
            events, pids = self._table("", "memory.events"), self._table("", "pids.events")
            # A kill without the group itself having been full came from a limit above it or a host without memory.
            kills, is_own = events.get("oom_kill", 0), bool(events.get("oom", 0))
            peak = self._number("", "memory.peak")  # since Linux 5.19; 0 lets init's own figure stand
            refusals = pids.get("max", 0)
            return GroupUsage(
                peak, self.cpu_seconds(), kills if is_own else 0, refusals, outside_kills=0 if is_own else kills
            )
        kills = self._table("memory", "memory.oom_control").get("oom_kill", 0)
        peak = self._number("memory", "memory.max_usage_in_bytes")
        return GroupUsage(peak, self.cpu_seconds(), kills, self._table("pids", "pids.events").get("max", 0))

    def cpu_seconds(self) -> float:
        if self._home.version == 2:
            return self._table("", "cpu.stat").get("usage_usec", 0) / 1e6
        return self._number("cpuacct", "cpuacct.usage") / 1e9

    def _text(self, controller: str, name: str) -> str:
        return read(f"{self._paths[controller]}/{name}")

    def _number(self, controller: str, name: str) -> int:
        return int(self._text(controller, name) or 0)

    def _table(self, controller: str, name: str) -> Dict[str, int]:
        rows = (line.split() for line in self._text(controller, name).splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}

    def remove(self) -> None:
        """Ends whatever is still in there, and leaves nothing of it."""
        for path in dict.fromkeys(self._paths.values()):
            remove_group(path)


def _quota(cpus: float) -> int:
    """Microseconds per period; the kernel takes no less than a thousand."""
    return max(int(cpus * _PERIOD), 1000)


def remove_group(path: str) -> None:
    """The kernel empties a group a moment after its last process was reaped; until then it is busy."""
    deadline = time.monotonic() + _REMOVAL_SECONDS
    while time.monotonic() < deadline:
        try:
            os.rmdir(path)
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                return
        _kill_members(path)
        time.sleep(0.002)


def _kill_members(path: str) -> None:
    try:
        with open(f"{path}/cgroup.kill", "w") as file:
            file.write("1")
    except OSError:  # version 1, or before Linux 5.14
        for pid in members(path):
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


def members(path: str) -> List[int]:
    """Those that we can name: processes of a pid namespace beside ours show as 0."""
    return [int(pid) for pid in read(f"{path}/cgroup.procs").split() if pid != "0"]


def read(path: str) -> str:
    """ "" where there is none: a group may go at any time."""
    try:
        return kernel_files.read(path)
    except OSError:
        return ""


def own_paths(pid: Optional[int] = None) -> Dict[str, str]:
    """This or another process's group per controller; the key "" is version 2."""
    paths: Dict[str, str] = {}
    with open(f"/proc/{pid or 'self'}/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for controller in controllers.split(","):
                paths[controller] = path
    return paths


def find_home() -> Optional[Home]:
    """Where groups can really be made with limits that really take; None if nowhere."""
    from . import cgroup_homes

    return cgroup_homes.find()
