"""What of a backend can be seen from outside: its processes, and the descriptors of this one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any


def descendants(root: int | None = None) -> set[int]:
    """Every process below this one, or below `root`."""
    found: set[int] = set()
    pending = [os.getpid() if root is None else root]
    while pending:
        pid = pending.pop()
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    children = [int(item) for item in file.read().split()]
                pending += children
                found.update(children)
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def alive(pids: Iterable[int]) -> set[int]:
    """Those that can still do something."""
    return {pid for pid in pids if _state(pid) not in ("", "Z", "X")}


def remembered(pids: Iterable[int]) -> set[int]:
    """Those that are still there, be it as zombies."""
    return {pid for pid in pids if _state(pid)}


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def eventually(condition: Callable[[], object], seconds: float = 10) -> bool:
    """Whether it becomes true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def of_zygotes(backend: Any) -> set[int]:
    """The guests of a process backend that keeps no cells waiting, and what looks after them."""
    zygotes = set(backend.zygote_pids)
    return set().union(*(descendants(pid) for pid in zygotes)) - zygotes


def of_workers(backend: Any) -> set[int]:
    """The workers that are busy; those that wait belong to the program, not to a run."""
    pool = backend._supervisor.pool
    return set(pool.pids) - {worker.pid for worker in pool._idle}


def of_nobody(backend: Any) -> set[int]:
    return set()
