"""What each worker has, in memory that the front and its workers share.

Without a token file the only tenant has sandboxes in all workers. Each worker writes its own row, and its quota counts
all rows. The row of a worker that ended is cleared by the front, so nothing of it stays counted.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from warmcell.interfaces.serve.quotas import SANDBOXES, SNAPSHOTS, SOCKETS, TenantQuota

_KINDS = len((SANDBOXES, SNAPSHOTS, SOCKETS))
_ROW = struct.Struct(f"<{_KINDS}I")


def make_counts_file(workers: int) -> int:
    """A descriptor of memory for so many workers, which have nothing."""
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
        """Held for a few instructions, never over an await. The kernel releases the lock of a process that ends."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        self._memory.close()
        os.close(self._descriptor)


class SharedQuota(TenantQuota):
    """In a worker: of the only tenant, over all workers."""

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
