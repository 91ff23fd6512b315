"""Unpacks layers on top of each other into one directory, for stores whose file system cannot have whiteouts."""

from __future__ import annotations

import os
import stat

from warmcell.core.light import closing_fd
from warmcell.images.decompress import LayerReader
from warmcell.images.limits import Budget
from warmcell.images.tar_reader import TarEntry
from warmcell.images.unpack import Path, Unpacker, mode_of
from warmcell.workspace.remove import remove_trees


class MergingUnpacker(Unpacker):
    """Unpacks a layer onto those below it: a whiteout removes. Entries of the layer itself are never removed by one."""

    def __init__(self, directory: str, budget: Budget) -> None:
        super().__init__(directory, budget)
        #: Every path that this layer has, and their parents.
        self._own: set[Path] = set()
        #: Directories in which nothing of lower layers is left.
        self._hidden: set[Path] = set()

    def add(self, entry: TarEntry, reader: LayerReader) -> None:
        super().add(entry, reader)
        if not entry.path or not entry.path[-1].startswith(b".wh."):
            self._add_own(entry.path)

    def _add_own(self, path: Path) -> None:
        """From below, until one is known: its parents are then known too."""
        for length in range(len(path), -1, -1):
            if path[:length] in self._own:
                return
            self._own.add(path[:length])

    def hide(self, parent: int, path: Path) -> None:
        if self._remove_lower(parent, path):
            self._hide_below(path)

    def hide_content(self, directory: int, path: Path) -> None:
        self._hide_below(path)

    def _hide_below(self, path: Path) -> None:
        """Each directory once: a layer may have any number of whiteouts, and its own directories be nested deeply."""
        waiting = [path]
        while waiting:
            above = waiting.pop()
            if above in self._hidden:
                continue
            self._hidden.add(above)
            with closing_fd(self._open_directory(above)) as directory:
                paths = [(*above, os.fsencode(name)) for name in os.listdir(directory)]
                waiting += [below for below in paths if self._remove_lower(directory, below)]

    def remove_directory(self, parent: int, name: bytes) -> None:
        """A file may replace a lower layer's directory with all that it has."""
        remove_trees(parent, [os.fsdecode(name)])

    def _remove_lower(self, parent: int, path: Path) -> bool:
        """Remove an entry of lower layers. True: it is a directory of this layer, to be looked into."""
        mode = mode_of(parent, path[-1])
        if mode is None:
            return False
        if path in self._own:
            return stat.S_ISDIR(mode)
        if stat.S_ISDIR(mode):
            remove_trees(parent, [os.fsdecode(path[-1])])
        else:
            os.unlink(path[-1], dir_fd=parent)
        return False
