"""The control group around this process that allows no more processes, if one does."""

from __future__ import annotations

import os

_MOUNTS = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")


def full_group(membership: str = "/proc/self/cgroup", mounts: tuple[str, ...] = _MOUNTS) -> tuple[str, int] | None:
    """The nearest group whose pids.max is reached, and that number. None where there is none, or it cannot be read."""
    try:
        with open(membership) as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return None
    for _, controllers, path in lines:
        if not controllers or "pids" in controllers.split(","):
            for mount in mounts:
                found = _full_group_above(mount, path)
                if found is not None:
                    return found
    return None


def _full_group_above(mount: str, path: str) -> tuple[str, int] | None:
    while True:
        most, current = (_number(f"{mount}{path.rstrip('/')}/pids.{name}") for name in ("max", "current"))
        if most is not None and current is not None and current >= most:
            return path, most
        if path == "/":
            return None
        path = os.path.dirname(path)


def _number(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):  # not there, or "max"
        return None
