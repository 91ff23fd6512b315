"""Free disk space and descriptors of the host, checked before new work is accepted."""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

from warmcell.core.errors import BackendUnavailable
from warmcell.core.types import MIB
from warmcell.lifetime.held_directories import writable_directory

_log = logging.getLogger("warmcell.serve")
#: With less than this a sandbox cannot be made; guests have limits of their own.
MIN_FREE_BYTES, MIN_FREE_INODES = 64 * MIB, 1024
#: Kept for ending what runs, and for what is being started when the others run out.
RESERVED_DESCRIPTORS = 64
#: How long a result about the disk is reused, and how often a change is logged at most.
CACHE_SECONDS = 1.0


class HostShortage(BackendUnavailable):
    """The host has too little disk space or too few descriptors left for new work. A 503 with Retry-After."""

    retryable = True


class HostResources:
    def __init__(self, connections: int = 0, state: str | None = None) -> None:
        """`connections`: how many descriptors are kept for the connections of clients. `state`: a directory."""
        self._reserved, self._state = RESERVED_DESCRIPTORS + connections, state
        self._disk: str | None = None
        self._logged: str | None = None
        self._checked = self._logged_at = -CACHE_SECONDS
        self._is_suspended = False

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Accept work while saved sandboxes are restored: their files exist already, and removing some makes room."""
        self._is_suspended = True
        try:
            yield
        finally:
            self._is_suspended = False

    def check(self) -> None:
        """Raises `HostShortage` if the host has too little left."""
        if not self._is_suspended and (problem := self.problem()) is not None:
            raise HostShortage(problem, hint="try again later")

    def problem(self) -> str | None:
        now = time.monotonic()
        if now - self._checked >= CACHE_SECONDS:
            self._disk, self._checked = self._disk_problem(), now
        problem = self._disk or _descriptor_problem(self._reserved)
        if problem != self._logged and now - self._logged_at >= CACHE_SECONDS:
            self._logged, self._logged_at = problem, now
            _log.error("new work is %s", f"refused: {problem}" if problem else "accepted again")
        return problem

    def _disk_problem(self) -> str | None:
        place = writable_directory()
        if place is None:
            return "the host has no writable directory for temporary files"
        problem = _describe_full_disk(place, "temporary files")
        return problem if problem or self._state is None else _describe_full_disk(self._state, "saved sandboxes")


def _describe_full_disk(place: str, purpose: str) -> str | None:
    found = os.statvfs(place)
    if found.f_bavail * found.f_frsize < MIN_FREE_BYTES:
        return f"the host's disk for {purpose} is full"
    if found.f_files and found.f_favail < MIN_FREE_INODES:
        return f"the host's disk for {purpose} has no free inodes"
    return None


def _descriptor_problem(reserved: int) -> str | None:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # Linux before 6.2 does not report the number.
    count = os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
    if soft == resource.RLIM_INFINITY or count <= soft - min(reserved, soft // 2):
        return None
    return f"the server has almost no free descriptors (RLIMIT_NOFILE is {soft})"


def connections_within_limit(wanted: int) -> int:
    """At most a quarter of the descriptors that this process may have: the others are for sandboxes."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 4))
