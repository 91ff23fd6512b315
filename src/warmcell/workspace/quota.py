"""Quota: what the host writes for a sandbox counts like what its guests write, against the same limit."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from warmcell.core.types import MIB
from warmcell.workspace.errors import LimitExceeded

_BLOCK = 4096
#: A directory takes a block, and so does an empty file: a million names are no small thing either.
DIRECTORY_SPACE = _BLOCK


def space_for(size: int) -> int:
    """What a file of that size takes."""
    return max(1, -(-size // _BLOCK)) * _BLOCK


class Quota:
    """Space that file methods may take in one sandbox, all of its writable directories together.

    It counts what they add and gives back what they replace or remove, by blocks really held: a sparse file that a
    guest made, once removed, must not buy room that was never taken.
    """

    def __init__(self, disk_mb: int) -> None:
        self._limit = disk_mb * MIB
        self._used = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def charged(self, path: str, added: int, freed: int = 0) -> Iterator[None]:
        """Takes the space for what the body does; gives it back when that fails."""
        with self._lock:
            before = self._used
            after = max(0, before + added - freed)
            if after > self._limit and after > before:
                raise LimitExceeded(
                    path,
                    f"would take more than the sandbox's {self._limit // MIB} MB of disk",
                    limit=self._limit,
                    hint="remove something, or give the sandbox limits=Limits(disk_mb=...)",
                )
            self._used = after
        try:
            yield
        except BaseException:
            self.refund(after - before)
            raise

    def refund(self, freed: int) -> None:
        with self._lock:
            self._used = max(0, self._used - freed)
