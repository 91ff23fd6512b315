"""Control groups, version 2 or 1: limits that the kernel keeps for the whole tree.

`join` is for the cage. The rest is for the supervisor, which makes a group per cell, reads it and removes it.
"""

from __future__ import annotations

import errno
import os
import time
from typing import Dict, Iterable, List, NamedTuple, Optional

from .namespaces import CLONE_NEWCGROUP
from .syscalls import call

ROOT = "/sys/fs/cgroup"
_V1_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")


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


class Group:
    """One cell's group. `remove` is called when its processes are gone."""

    def __init__(self, home: Home, name: str, limits: GroupLimits) -> None:
        self._home = home
        self._paths = {controller: f"{base}/{name}" for controller, base in home.directories.items()}
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
                self._write("", "cpu.max", f"{int(limits.cpus * 100_000)} 100000")
            return
        self._write("memory", "memory.limit_in_bytes", limits.memory_bytes)
        self._write("memory", "memory.memsw.limit_in_bytes", limits.memory_bytes, optional=True)
        self._write("pids", "pids.max", limits.processes)
        if limits.cpus:
            self._write("cpu", "cpu.cfs_quota_us", int(limits.cpus * 100_000))

    def _write(self, controller: str, name: str, value: object, optional: bool = False) -> None:
        path = f"{self._paths[controller]}/{name}"
        if optional and not os.path.exists(path):
            return
        with open(path, "w") as file:
            file.write(str(value))

    def open_procs(self) -> List[int]:
        """Descriptors through which the cell joins by itself."""
        paths = dict.fromkeys(self._paths.values())
        return [os.open(f"{path}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for path in paths]

    def usage(self) -> GroupUsage:
        if self._home.version == 2:
            events, pids = self._table("", "memory.events"), self._table("", "pids.events")
            peak = self._number("", "memory.peak")
            return GroupUsage(peak, self.cpu_seconds(), events.get("oom_kill", 0), pids.get("max", 0))
        kills = self._table("memory", "memory.oom_control").get("oom_kill", 0)
        peak = self._number("memory", "memory.max_usage_in_bytes")
        return GroupUsage(peak, self.cpu_seconds(), kills, self._table("pids", "pids.events").get("max", 0))

    def cpu_seconds(self) -> float:
        if self._home.version == 2:
            return self._table("", "cpu.stat").get("usage_usec", 0) / 1e6
        return self._number("cpuacct", "cpuacct.usage") / 1e9

    def _text(self, controller: str, name: str) -> str:
        try:
            with open(f"{self._paths[controller]}/{name}") as file:
                return file.read()
        except OSError:
            return ""

    def _number(self, controller: str, name: str) -> int:
        return int(self._text(controller, name) or 0)

    def _table(self, controller: str, name: str) -> Dict[str, int]:
        rows = (line.split() for line in self._text(controller, name).splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}

    def remove(self) -> None:
        """The kernel empties a group a moment after the last process is reaped; busy is tried again briefly."""
        for path in dict.fromkeys(self._paths.values()):
            for _ in range(200):
                try:
                    os.rmdir(path)
                except OSError as error:
                    if error.errno == errno.EBUSY:
                        time.sleep(0.002)
                        continue
                break


def own_paths() -> Dict[str, str]:
    """This process's group per controller; the key "" is version 2."""
    paths: Dict[str, str] = {}
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for controller in controllers.split(","):
                paths[controller] = path
    return paths


def find_home() -> Optional[Home]:
    """Where groups can really be made with limits that really take, found by making one; None if nowhere."""
    for candidate in (_version_2_home, _version_1_home):
        try:
            home = candidate()
            if home is not None:
                _prove(home)
                return home
        except (OSError, ValueError, KeyError):
            continue
    return None


def _prove(home: Home) -> None:
    group = Group(home, f"sandkeep-probe-{os.getpid()}-{time.monotonic_ns()}", GroupLimits(64 << 20, 16))
    group.remove()


def _version_2_home() -> Optional[Home]:
    base = ROOT if os.path.exists(f"{ROOT}/cgroup.controllers") else ""
    if not base:
        return None
    own = own_paths().get("", "/")
    # Only a group without processes of its own may hand controllers down, so the nearest such group above us is it.
    path = base + own.rstrip("/")
    while path.startswith(base):
        try:
            with open(f"{path}/cgroup.subtree_control", "w") as file:
                file.write("+memory +pids +cpu")
            return Home(2, {"": path})
        except OSError:
            path = os.path.dirname(path)
    return None


def _version_1_home() -> Optional[Home]:
    own = own_paths()
    directories = {}
    for controller in _V1_CONTROLLERS:
        path = os.path.realpath(f"{ROOT}/{controller}") + own[controller].rstrip("/")
        if not os.access(path, os.W_OK):
            return None
        directories[controller] = path
    return Home(1, directories)
