"""The processor time of a run by kind of process, from the kernel's accounting."""

from __future__ import annotations

import os
import time
from pathlib import Path

from warmcell.backends.process.backend import ProcessBackend
from warmcell.diagnosis.bench import ours

_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def processor_time(runs: int) -> dict[str, float]:
    """Milliseconds per run with one caller: in total, and per kind of process."""
    with ProcessBackend() as backend:
        action = ours(backend)
        for _ in range(max(20, runs // 10)):
            action()
        manager = backend.zygote_pids[0]
        zygote, watcher = _who_stays(manager)
        before = _cpu_used(manager, zygote, watcher)
        for _ in range(runs):
            action()
        after = _cpu_used(manager, zygote, watcher)
    found = {name: round((after[name] - before[name]) / runs, 2) for name in after}
    return {"all": round(sum(found.values()), 2), **found}


def _who_stays(manager: int) -> tuple[int, int | None]:
    """Find the zygote, which is the oldest child, and the watcher, which also runs Python, if there is one."""
    time.sleep(0.2)
    pids = sorted(map(int, Path(f"/proc/{manager}/task/{manager}/children").read_text().split()))
    oldest = sorted(pids, key=_start_time)
    watchers = [pid for pid in oldest[1:] if _thread_name(pid) == _thread_name(oldest[0]) and _shares(pid, manager)]
    return oldest[0], watchers[0] if watchers else None


def _shares(pid: int, manager: int) -> bool:
    """The watcher is in the manager's own namespaces, a guest never."""
    return os.stat(f"/proc/{pid}/ns/mnt").st_ino == os.stat(f"/proc/{manager}/ns/mnt").st_ino


def _start_time(pid: int) -> int:
    return int(_fields(pid)[19])


def _thread_name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


def _fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _cpu_used(manager: int, zygote: int, watcher: int | None) -> dict[str, float]:
    ended = _fields(manager)
    return {
        "supervisor": time.process_time() * 1000,
        "manager": _own(manager),
        "zygote": _own(zygote),
        "watcher": _own(watcher) if watcher else 0.0,
        "guests and inits": (int(ended[13]) + int(ended[14])) * _TICK_MS,
    }


def _own(pid: int) -> float:
    """From schedstat, in nanoseconds: `stat` counts in ticks."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6
