"""Finds the open cages of all programs on this host in /proc, at no cost to those programs.

A manager is recognised by its command line. Processes in a pid namespace below it are in a cage: those that the manager
started there, with their descendants, and orphans, which are children of the cage's init. Only the text of a command
comes from the guest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise

from warmcell.core.records import dataclass
from warmcell.pool.prestarted_manager import MANAGER_MARK

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_STARTED_AT, _USER, _SYSTEM, _PARENT = 19, 11, 12, 1  # counted from the state, which follows the name


@dataclass(frozen=True, slots=True)
class HostCage:
    """`program` is the pid of the host program that owns it; `seconds` is its age, `memory` its private bytes."""

    pid: int
    program: int
    program_name: str
    command: str
    processes: int
    cpu_seconds: float
    memory: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    started: float
    cpu_seconds: float
    memory: int
    #: The depth of its pid namespace; ours is 1.
    depth: int
    #: Its pid in the innermost namespace.
    inner_pid: int


def find_cages(proc: str = "/proc") -> list[HostCage]:
    """The cages of all programs that we may inspect. Processes that end meanwhile are skipped."""
    processes = {found.pid: found for found in _processes(proc)}
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    now = float(_read(f"{proc}/uptime").split()[0])
    return [
        _cage(processes, children, pid, processes[manager].parent, now, proc)
        for manager in list(processes)
        if _is_manager(proc, manager)
        for pid in _in_cages(processes, children, manager)
    ]


def _in_cages(processes: dict[int, _Process], children: dict[int, list[int]], manager: int) -> Iterator[int]:
    for pid in children.get(manager, ()):
        if processes[pid].depth > processes[manager].depth:
            yield from children.get(pid, ()) if processes[pid].inner_pid == 1 else (pid,)


def _cage(
    processes: dict[int, _Process], children: dict[int, list[int]], pid: int, program: int, now: float, proc: str
) -> HostCage:
    tree = list(_tree(children, pid))
    # A shell's `npm run dev` is more informative than the agent that started it.
    shown = tree[1] if len(tree) > 1 else pid
    return HostCage(
        pid=pid,
        program=program,
        program_name=_command(proc, program),
        command=_command(proc, shown),
        processes=len(tree),
        cpu_seconds=sum(processes[each].cpu_seconds for each in tree),
        memory=sum(processes[each].memory for each in tree),
        seconds=max(0.0, now - processes[pid].started),
    )


def _tree(children: dict[int, list[int]], pid: int) -> Iterator[int]:
    waiting = [pid]
    while waiting:
        yield (found := waiting.pop(0))
        waiting += children.get(found, ())


def _processes(proc: str) -> Iterator[_Process]:
    for name in os.listdir(proc):
        if name.isdigit():
            try:
                yield _process(proc, int(name))
            except (OSError, ValueError, IndexError):  # ended, or not accessible
                continue


def _process(proc: str, pid: int) -> _Process:
    # The name may contain spaces and parentheses; the last parenthesis ends it.
    stat = _read(f"{proc}/{pid}/stat").rpartition(b")")[2].split()
    status = dict(line.split(b":", 1) for line in _read(f"{proc}/{pid}/status").splitlines() if b":" in line)
    inner = status[b"NSpid"].split() if b"NSpid" in status else [b"%d" % pid]
    return _Process(
        pid=pid,
        parent=int(stat[_PARENT]),
        started=int(stat[_STARTED_AT]) / _TICKS,
        cpu_seconds=(int(stat[_USER]) + int(stat[_SYSTEM])) / _TICKS,
        memory=int(status.get(b"RssAnon", b"0").split()[0]) << 10,
        depth=len(inner),
        inner_pid=int(inner[-1]),
    )


def _is_manager(proc: str, pid: int) -> bool:
    try:
        words = _read(f"{proc}/{pid}/cmdline").split(b"\0")
    except OSError:
        return False
    return any(MANAGER_MARK.encode() in word for before, word in pairwise(words) if before == b"-c")


def _command(proc: str, pid: int) -> str:
    try:
        return _read(f"{proc}/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
