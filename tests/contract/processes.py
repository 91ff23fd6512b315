"""A backend seen from outside: its processes, and the descriptors of this one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any


def descendants(root: int | None = None) -> set[int]:
    """Every process below this one, or below `root`."""
    found: set[int] = set()
    pending = [os.getpid() if root is None else root]
    while pending:
        children = _children(pending.pop())
        pending += children
        found |= children
    return found


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found.update(map(int, file.read().split()))
    return found


def _status(pid: int) -> str:
    """Name, state and parent, for the report of a failure."""
    with suppress(OSError), open(f"/proc/{pid}/status") as file:
        return " ".join("".join(file).split()[:20])
    return "gone"


def new_descendants(before: set[int]) -> dict[int, str]:
    """Processes below this one that neither were there before nor belong to one that was, with their status."""
    own: set[int] = set()
    pending = [os.getpid()]
    while pending:
        children = _children(pending.pop()) - before
        own |= children
        pending += children
    return {pid: _status(pid) for pid in own}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def alive(pids: Iterable[int]) -> set[int]:
    """Those that have not exited."""
    return {pid for pid in pids if _state(pid) not in ("", "Z", "X")}


def existing(pids: Iterable[int]) -> set[int]:
    """Those that the kernel still lists, zombies included."""
    return {pid for pid in pids if _state(pid)}


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def of_zygotes(backend: Any) -> set[int]:
    """The guests of a process backend without warm cells, and their supervising processes."""
    zygotes = set(backend.zygote_pids)
    return set().union(*(descendants(pid) for pid in zygotes)) - zygotes


def of_workers(backend: Any) -> set[int]:
    """The busy workers; idle ones belong to the program, not to a run."""
    pool = backend._supervisor.pool
    return set(pool.pids) - {worker.pid for worker in pool.ready()}


def of_nodes(backend: Any) -> set[int]:
    """Below the actors of a cluster on this host: guests, and the processes that make them."""
    pids = [link.facts.pid for link in backend._cluster.links.values()]
    return set().union(*map(descendants, pids))


def of_nobody(backend: Any) -> set[int]:
    return set()
