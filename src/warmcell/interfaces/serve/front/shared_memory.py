"""Memory shared by the front and its workers: the state of each client connection, and the counts of each worker.

The state of a connection outlives the worker that wrote it, so the front knows how to answer the clients of a worker
that was killed. Without a token file the only tenant has sandboxes in all workers: each worker writes its own row, and
its quota counts all rows. The row of a worker that ended is cleared by the front, so nothing of it stays counted.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NamedTuple

from warmcell.interfaces.serve.quotas import SANDBOXES, SNAPSHOTS, SOCKETS, TenantQuota

_KINDS = len((SANDBOXES, SNAPSHOTS, SOCKETS))
_ROW = struct.Struct(f"<{_KINDS}I")
#: The number of the route, the phase, and the time of the change.
_ENTRY = struct.Struct("<HBxd")
NO_ROUTE = 0xFFFF


class Phase(IntEnum):
    """How far the request on a connection is."""

    IDLE = 0
    #: No byte of the response was sent.
    REQUEST = 1
    #: In a chunked body of server-sent events, or of Connect messages.
    EVENTS = 2
    CONNECT = 3
    #: In another response, or a WebSocket: nothing can be added to it.
    OTHER = 4


class ConnectionState(NamedTuple):
    """`since` is monotonic time, which all processes share."""

    route: int
    phase: Phase
    since: float


class ConnectionStates:
    """One entry per slot. Written without system calls, and without locks: each slot has one writer at a time."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)

    def set(self, slot: int, phase: Phase, route: int = NO_ROUTE) -> None:
        _ENTRY.pack_into(self._memory, slot * _ENTRY.size, route, phase, time.monotonic())

    def get(self, slot: int) -> ConnectionState:
        route, phase, since = _ENTRY.unpack_from(self._memory, slot * _ENTRY.size)
        return ConnectionState(route, Phase(phase), since)

    def close(self) -> None:
        self._memory.close()


def make_states_file(slots: int) -> int:
    """A descriptor of memory for `slots` connections, all idle."""
    descriptor = os.memfd_create("warmcell-connections", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, slots * _ENTRY.size)
    return descriptor


def make_counts_file(workers: int) -> int:
    """A descriptor of memory for the counts of `workers` workers, all zero."""
    descriptor = os.memfd_create("warmcell-counts", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, workers * _ROW.size)
    return descriptor


class SharedCounts:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)

    def of_worker(self, worker: int, kind: int) -> int:
        return int(_ROW.unpack_from(self._memory, worker * _ROW.size)[kind])

    def total(self, kind: int) -> int:
        return sum(row[kind] for row in _ROW.iter_unpack(self._memory))

    def change(self, worker: int, kind: int, by: int) -> None:
        row = [*_ROW.unpack_from(self._memory, worker * _ROW.size)]
        row[kind] = max(0, row[kind] + by)
        _ROW.pack_into(self._memory, worker * _ROW.size, *row)

    def clear(self, worker: int) -> None:
        _ROW.pack_into(self._memory, worker * _ROW.size, *(0,) * _KINDS)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the counts, for a few instructions and never over an await. The kernel frees a dead process's lock."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        self._memory.close()
        os.close(self._descriptor)


class SharedQuota(TenantQuota):
    """In a worker: the quota of the only tenant, over all workers."""

    def __init__(self, counts: SharedCounts, worker: int, kind: int) -> None:
        self._counts, self._worker, self._kind = counts, worker, kind

    def take(self, tenant_id: str, limit: int) -> bool:
        with self._counts.lock():
            if self.total() >= limit:
                return False
            self.add(tenant_id)
            return True

    def add(self, tenant_id: str) -> None:
        self._counts.change(self._worker, self._kind, 1)

    def release(self, tenant_id: str) -> None:
        self._counts.change(self._worker, self._kind, -1)

    def count(self, tenant_id: str) -> int:
        return self.total()

    def total(self) -> int:
        return self._counts.total(self._kind)
