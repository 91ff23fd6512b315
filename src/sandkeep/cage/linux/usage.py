"""What the whole tree uses, read from the /proc that init sees: every process in it belongs to the run."""

from __future__ import annotations

import os
from typing import Dict, Iterator, List

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


def descendants(root: int) -> Iterator[int]:
    """Every process below `root`, children before their own children."""
    for child in _children(root):
        yield child
        yield from descendants(child)


def _children(pid: int) -> List[int]:
    found: List[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(item) for item in file.read().split()]
    except OSError:
        pass
    return found


def cpu_seconds(pids: List[int]) -> float:
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15])
    return total / _TICK


def memory_bytes(pids: List[int], scratch: str, ceiling: int) -> int:
    """An upper bound from cheap counters while that is below `ceiling`; the exact proportional figure above it."""
    stores = _stores(pids, scratch)
    quick = stores + sum(_resident(pid) for pid in pids)
    if quick < ceiling:
        return quick
    anonymous = shared = 0
    for pid in pids:
        parts = _proportional(pid)
        anonymous += parts.get("Pss_Anon", 0)
        shared += parts.get("Pss_Shmem", 0)
    return anonymous + max(shared, stores)


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _proportional(pid: int) -> Dict[str, int]:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            rows = (line.split() for line in file)
            return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if row[-1] == "kB"}
    except OSError:
        # Unreadable (it made itself so, or it just ended): what it has resident is all its own.
        return {"Pss_Anon": _resident(pid)}


def _stores(pids: List[int], scratch: str) -> int:
    """Memory that no process need have mapped: the scratch tmpfs, memfds, System V segments."""
    total = 0
    if scratch:
        status = os.statvfs(scratch)
        total += (status.f_blocks - status.f_bfree) * status.f_frsize
    total += sum(_memory_files(pids).values())
    try:
        with open("/proc/sysvipc/shm") as file:
            total += sum(int(line.split()[14]) for line in list(file)[1:])
    except (OSError, IndexError, ValueError):
        pass
    return total


def _memory_files(pids: List[int]) -> Dict[int, int]:
    sizes: Dict[int, int] = {}
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            path = f"/proc/{pid}/fd/{name}"
            try:
                if os.readlink(path).startswith("/memfd:"):
                    status = os.stat(path)
                    sizes[status.st_ino] = status.st_blocks * 512
            except OSError:
                continue
    return sizes


def directory_bytes(paths: List[str], most_entries: int = 200_000) -> int:
    """Disk that writable host directories hold, links not followed, bounded work."""
    total = seen = 0
    pending = list(paths)
    while pending and seen < most_entries:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    seen += 1
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError:
            continue
    return total
