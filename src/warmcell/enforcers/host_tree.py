"""HostTree: the host's files as the search for GPUs reads them. Tests have a made-up one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache

from warmcell.core.errors import SandboxError
from warmcell.core.records import dataclass
from warmcell.enforcers.host import ask, find_program


@cache
def _loader_cache() -> tuple[str, ...]:
    """The libraries that the loader finds by itself."""
    ldconfig = find_program("ldconfig", os.pathsep.join((os.environ.get("PATH", ""), "/sbin", "/usr/sbin")))
    try:
        lines = ask([ldconfig, "-p"]).splitlines() if ldconfig else []
    except SandboxError:  # musl's only prints its usage; the usual directories are searched then
        lines = []
    return tuple(line.partition(" => ")[2].strip() for line in lines if " => /" in line)


def _is_open_to_guests(node: str) -> bool:
    """Root's guests have an id that owns nothing; those of other users have the caller's id and groups."""
    if os.geteuid() == 0:
        return os.stat(node).st_mode & 0o006 == 0o006
    return os.access(node, os.R_OK | os.W_OK)


@dataclass(frozen=True, slots=True)
class HostTree:
    """Paths are those of the host, whatever the root."""

    root: str = "/"
    loader_cache: Callable[[], Iterable[str]] = _loader_cache
    #: Whether a guest could open a node, by its path.
    is_open: Callable[[str], bool] = _is_open_to_guests

    def path(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self.path(directory)))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(self.path(path))
