"""Unpacks layers on top of each other into one directory, for stores whose file system cannot have whiteouts."""

from __future__ import annotations

import os
import stat

from warmcell.core.light import closing_fd
from warmcell.images.decompress import LayerReader
from warmcell.images.limits import Budget
from warmcell.images.tar_reader import TarEntry
from warmcell.images.unpack import Path, Unpacker
from warmcell.workspace.remove import remove_trees


class MergingUnpacker(Unpacker):
    """Unpacks a layer onto those below it: a whiteout removes. Entries of the layer itself are never removed by one."""

    def __init__(self, directory: str, budget: Budget) -> None:
        super().__init__(directory, budget)
        #: Every path that this layer has, and their parents.
        self._own: set[Path] = set()

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
        self._remove_lower(parent, path)

    def hide_content(self, directory: int, path: Path) -> None:
        for name in os.listdir(directory):
            self._remove_lower(directory, (*path, os.fsencode(name)))

    def remove_directory(self, parent: int, name: bytes) -> None:
        """A file may replace a lower layer's directory with all that it has."""
        remove_trees(parent, [os.fsdecode(name)])

    def _remove_lower(self, parent: int, path: Path) -> None:
        try:
            mode = os.stat(path[-1], dir_fd=parent, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            if path not in self._own:
                os.unlink(path[-1], dir_fd=parent)
        elif path not in self._own:
            remove_trees(parent, [os.fsdecode(path[-1])])
        else:
            with closing_fd(
                os.open(path[-1], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            ) as fd:
                self.hide_content(fd, path)
