"""How many files a guest may open, and the room above that which is ours alone.

Guests open files in this very process. Without room of our own, one that opens all it may would make the next thing
that we do for it fail, in places and words that it should never see.
"""

from __future__ import annotations

import contextlib
import functools
import resource
from collections.abc import Iterator

#: What the worker itself has open: its socket, pipes, epolls, the streams and directories of nested runs.
_OWN_FILES = 64
_NESTED_FILES = 64


class OpenFilesLimit:
    """Set once for a run; `raised` while something is opened on behalf of the worker."""

    def __init__(self) -> None:
        self._soft = 0

    @functools.cached_property
    def _hard(self) -> int:
        """Of the worker, and not of the zygote that it is a copy of."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def set(self, open_files: int) -> None:
        soft = open_files + _OWN_FILES
        if self._hard != resource.RLIM_INFINITY:
            soft = min(soft, self._hard - _NESTED_FILES)
        if soft != self._soft:
            self._soft = soft
            self._apply(soft)

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """Nothing of a guest's may run meanwhile."""
        self._apply(self._soft + _NESTED_FILES if self._soft else self._hard)
        try:
            yield
        finally:
            if self._soft:
                self._apply(self._soft)

    def _apply(self, soft: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, self._hard))


#: Of this process.
open_files_limit = OpenFilesLimit()
