"""Where the time of many runs goes: processor time and context switches by kind of process, and the idle share.

Kinds: `supervisor` is the measured program and the processes that `processes=` starts; `front` and `worker` belong to a
server; `manager`, `zygote` and `watcher` to cages; `guests and inits` have ended; `wasm worker`; `load` is the client
of a server, which shares the processors with it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_CPU_FIELDS = 10
Totals = Counter[str]


class Sample(NamedTuple):
    """Since the start of each process: milliseconds and context switches, by kind."""

    milliseconds: Totals
    switches: Totals
    busy_ms: float
    idle_ms: float
    moment: float


def take_sample(roots: list[int]) -> Sample:
    milliseconds, switches = Totals(), Totals()
    for root in roots:
        _add(root, _kind_of_root(root), milliseconds, switches)
    busy, idle = _machine()
    return Sample(milliseconds, switches, busy, idle, time.monotonic())


def describe(before: Sample, after: Sample, runs: int) -> dict[str, float]:
    """Per run. Processes that started or ended in between make single figures wrong, so none below zero is shown."""
    runs, found = max(1, runs), dict[str, float]()
    for kind in sorted(after.milliseconds):
        if (spent := after.milliseconds[kind] - before.milliseconds[kind]) > 0:
            found[f"{kind} ms"] = round(spent / runs, 3)
    for kind in sorted(after.switches):
        if (count := after.switches[kind] - before.switches[kind]) > 0:
            found[f"{kind} switches"] = round(count / runs, 2)
    busy, idle = after.busy_ms - before.busy_ms, after.idle_ms - before.idle_ms
    found["machine ms"] = round(busy / runs, 3)
    found["idle share"] = round(idle / max(1.0, busy + idle), 3)
    return found


def _kind_of_root(pid: int) -> str:
    return "front" if b"\0serve\0" in _arguments(pid) and b"--workers" in _arguments(pid) else "supervisor"


def _add(pid: int, kind: str, milliseconds: Totals, switches: Totals) -> None:
    try:
        used, count, ended = _own(pid)
        children = _children(pid)
    except OSError:  # it has just ended
        return
    milliseconds[kind] += used
    switches[kind] += count
    if kind == "manager":
        milliseconds["guests and inits"] += ended
    for child, kind_of_child in _kinds(pid, kind, children):
        _add(child, kind_of_child, milliseconds, switches)


def _kinds(parent: int, kind: str, children: list[int]) -> Iterator[tuple[int, str]]:
    """Below a manager only what stays is counted: the others are in its own figures when they have ended."""
    if kind in ("zygote", "watcher", "wasm worker"):
        return
    if kind != "manager":
        for child in children:
            yield child, _kind_of_child(child)
        return
    ages = sorted(children, key=_start_time)
    yield from ((child, "zygote") for child in ages[:1])
    own = _arguments(parent)
    yield from ((child, "watcher") for child in ages[1:] if _arguments(child) == own)


def _kind_of_child(pid: int) -> str:
    arguments = _arguments(pid)
    if b"serve.front.worker" in arguments:
        return "worker"
    if b"supervisor" in arguments:
        return "supervisor"
    if b"wasm" in arguments:
        return "wasm worker"
    return "manager" if b"\0-c\0" in arguments else "supervisor"


def _own(pid: int) -> tuple[float, int, float]:
    """Milliseconds, context switches of the threads that exist, and the milliseconds of children that have ended."""
    count, fields = 0, [int(field) for field in _fields(pid)[11:15]]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if "ctxt_switches" in line:
                count += int(line.split()[1])
    return sum(fields[:2]) * _TICK_MS, count, sum(fields[2:]) * _TICK_MS


def _machine() -> tuple[float, float]:
    """Milliseconds of all processors: at work, and idle."""
    with open("/proc/stat", encoding="ascii") as file:
        values = [int(value) * _TICK_MS for value in file.readline().split()[1:_CPU_FIELDS]]
    idle = values[3] + values[4]
    return sum(values[:8]) - idle, idle


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _arguments(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _start_time(pid: int) -> int:
    try:
        return int(_fields(pid)[19])
    except OSError:
        return 1 << 62


def _fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
