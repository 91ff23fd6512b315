"""CopiedTree: a private copy of the directory for guests, where no overlay can be mounted."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from warmcell.changes.upper import Found, UpperDirectory
from warmcell.workspace.copy import CopyReport, copy_tree
from warmcell.workspace.names import Parts
from warmcell.workspace.root import Root
from warmcell.workspace.walk import TreeLimits, walk

_LIMITS = TreeLimits(entries=2_000_000, path_bytes=1 << 28, seconds=600.0)


class CopiedTree(UpperDirectory):
    """Shows only what changed since the copy was made, as an upper directory would."""

    def __init__(self, path: str, lower: Root | None, names: str) -> None:
        """Copies `lower`, within the usual limits on trees, and notes the names in the file `names`.

        None: copy and names are there, and everything may have changed.
        """
        super().__init__(path)
        self.report = CopyReport(0, 0, ())
        self._before: dict[Parts, tuple[int, ...]] = {}
        if lower is None:
            with open(names, "rb") as file:
                paths = file.read().split(b"\0")[:-1]
            self._before = {tuple(os.fsdecode(path).split("/")): () for path in paths}
            return
        self.report = copy_tree(lower, self.root)
        self._before = {entry.parts: _facts(entry.state) for entry in walk(self.root, (), _LIMITS)}
        with open(names, "wb") as file:
            file.writelines(os.fsencode("/".join(parts)) + b"\0" for parts in self._before)

    def entries(self) -> Iterator[Found]:
        missing = dict(self._before)
        directories: set[Parts] = {()}
        for entry in walk(self.root, (), _LIMITS):
            if entry.kind == "directory":
                directories.add(entry.parts)
            if missing.pop(entry.parts, None) != _facts(entry.state):
                yield Found(entry.parts, entry.kind, entry.state, entry.dir_fd)
        # What was in a directory that is gone is not named.
        state = os.fstat(self.root.fd)
        yield from (Found(parts, "deleted", state, -1) for parts in missing if parts[:-1] in directories)


def _facts(state: os.stat_result) -> tuple[int, ...]:
    """Guests cannot set the time of change. That of a directory changes with what is in it."""
    if stat.S_ISDIR(state.st_mode):
        return state.st_ino, state.st_mode
    return state.st_ino, state.st_ctime_ns
