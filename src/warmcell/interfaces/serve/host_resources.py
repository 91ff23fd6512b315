"""Free disk space and descriptors of the host, checked before new work is accepted."""

from __future__ import annotations

import logging
import os
import resource
import time

from warmcell.core.errors import BackendUnavailable
from warmcell.core.types import MIB
from warmcell.lifetime.held_directories import writable_place

_log = logging.getLogger("warmcell.serve")
#: Below this a sandbox could not even be made; guests have limits of their own.
MIN_FREE_BYTES, MIN_FREE_INODES = 64 * MIB, 1024
#: Kept for connections and for ending what runs.
RESERVED_DESCRIPTORS = 128
#: How long a result is reused.
CACHE_SECONDS = 1.0


class HostResources:
    def __init__(self) -> None:
        self._problem: str | None = None
        self._checked = -CACHE_SECONDS

    def check(self) -> None:
        """Raises `BackendUnavailable`, which is a 503 with Retry-After, if the host has too little left."""
        if (problem := self.problem()) is not None:
            raise BackendUnavailable(problem, hint="try again later")

    def problem(self) -> str | None:
        now = time.monotonic()
        if now - self._checked >= CACHE_SECONDS:
            before, self._checked = self._problem, now
            self._problem = _disk_problem() or _descriptor_problem()
            if self._problem != before:
                _log.error("new work is %s", f"refused: {self._problem}" if self._problem else "accepted again")
        return self._problem


def _disk_problem() -> str | None:
    place = writable_place()
    if place is None:
        return "the host has no writable directory for temporary files"
    found = os.statvfs(place)
    if found.f_bavail * found.f_frsize < MIN_FREE_BYTES:
        return "the host's disk for temporary files is full"
    if found.f_files and found.f_favail < MIN_FREE_INODES:
        return "the host's disk for temporary files has no free inodes"
    return None


def _descriptor_problem() -> str | None:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return None
    reserved = min(RESERVED_DESCRIPTORS, soft // 4)
    used = len(os.listdir("/proc/self/fd"))
    return "the server has almost no free descriptors" if used > soft - reserved else None
