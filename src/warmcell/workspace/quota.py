"""Quota: what the host writes for a sandbox counts against the same disk limit as what its guests write."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from warmcell.core.types import MIB
from warmcell.workspace.errors import LimitExceeded

_BLOCK = 4096
#: A directory takes a block, and so does an empty file, so that the number of names is bounded too.
DIRECTORY_SPACE = _BLOCK


def space_for(size: int) -> int:
    """The space that a file of that size takes."""
    return max(1, -(-size // _BLOCK)) * _BLOCK


class Quota:
    """Space that host-side writes may take in one sandbox, in all of its writable directories together.

    Replaced and removed files are refunded by allocated blocks, not by size: removing a guest's sparse file must not
    free space that was never taken.
    """

    def __init__(
        self,
        disk_mb: int,
        what: str = "of disk of the sandbox",
        hint: str = "remove files, or give the sandbox limits=Limits(disk_mb=...)",
    ) -> None:
        self._limit, self._what, self._hint = disk_mb * MIB, what, hint
        self._used = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def charge(self, path: str, added: int, freed: int = 0) -> Iterator[None]:
        """Charge the space that the body takes; refund it if the body raises."""
        with self._lock:
            before = self._used
            after = max(0, before + added - freed)
            if after > self._limit and after > before:
                reason = f"would take more than the {self._limit // MIB} MB {self._what}"
                raise LimitExceeded(path, reason, limit=self._limit, hint=self._hint)
            self._used = after
        try:
            yield
        except BaseException:
            self.refund(after - before)
            raise

    def refund(self, freed: int) -> None:
        with self._lock:
            self._used = max(0, self._used - freed)
