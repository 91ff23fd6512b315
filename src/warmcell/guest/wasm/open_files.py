"""The limit on a guest's open files, and the descriptors above it that are reserved for the worker.

Guests open files in the worker's own process. Without a reserve, a guest that opens as many as it may would make the
worker's next call fail, with errors that no guest should see.
"""

from __future__ import annotations

import contextlib
import functools
import resource
from collections.abc import Iterator

#: For the worker itself: its socket, pipes, epolls, the streams and directories of nested runs.
_OWN_FILES = 64
_NESTED_FILES = 64


class OpenFilesLimit:
    """Set once per run; the worker opens its own files within `headroom`."""

    def __init__(self) -> None:
        self._soft = 0

    @functools.cached_property
    def _hard(self) -> int:
        """Read late: the worker is a fork, and its limit may differ from the zygote's."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def set(self, open_files: int) -> None:
        soft = open_files + _OWN_FILES
        if self._hard != resource.RLIM_INFINITY:
            soft = min(soft, self._hard - _NESTED_FILES)
        if soft != self._soft:
            self._soft = soft
            self._apply(soft)

    @contextlib.contextmanager
    def headroom(self) -> Iterator[None]:
        """Raises the limit for a while. No guest code may run meanwhile."""
        self._apply(self._soft + _NESTED_FILES if self._soft else self._hard)
        try:
            yield
        finally:
            if self._soft:
                self._apply(self._soft)

    def _apply(self, soft: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, self._hard))


open_files_limit = OpenFilesLimit()
