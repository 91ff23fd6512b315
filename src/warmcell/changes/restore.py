"""Discards changes: restores paths of the guest's directory to the host's version.

It writes through the overlay, so that running guests see the result at once. The overlay keeps copies of restored
files, which do not count as changes because they equal the host's.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from warmcell.changes import content
from warmcell.changes.detect import Detected, Lower
from warmcell.lifetime.own_modes import change_mode, make_directory
from warmcell.workspace.files import temporary_file
from warmcell.workspace.names import Parts
from warmcell.workspace.remove import remove_trees
from warmcell.workspace.root import Root, temporary_name, translate_os_errors
from warmcell.workspace.walk import TreeLimits, walk

_LIMITS = TreeLimits(entries=2_000_000, total_bytes=1 << 62, path_bytes=1 << 28, seconds=600.0)


class Restorer:
    """`merged` is the guest's view, `lower` the host's directory."""

    def __init__(self, merged: Root, lower: Root) -> None:
        self._merged, self._lower = merged, lower

    def restore(self, items: list[Detected]) -> None:
        with Lower(self._lower) as lower:
            for item in items:
                for parts in (item.parts, item.old_parts):
                    if parts is not None:
                        self._restore(parts, lower.stat(parts), is_mode=item.change.kind == "mode")
            for item in items:
                self._remove_new_parents(item.parts, lower)

    def _restore(self, parts: Parts, state: os.stat_result | None, *, is_mode: bool) -> None:
        if is_mode and state is not None:
            with self._merged.parent(parts) as (dir_fd, name), translate_os_errors(parts):
                change_mode(name, stat.S_IMODE(state.st_mode) & 0o777, dir_fd=dir_fd)
            return
        if state is None or stat.S_ISDIR(state.st_mode):
            self._remove(parts)
        if state is None:
            return
        self._make_parents(parts)
        self._copy(parts, state)
        if stat.S_ISDIR(state.st_mode):
            for entry in walk(self._lower, parts, _LIMITS):
                self._copy(entry.parts, entry.state)

    def _copy(self, parts: Parts, state: os.stat_result) -> None:
        """Replace the guest's entry by the host's. Special files are left out."""
        with self._merged.parent(parts) as (dir_fd, name):
            if stat.S_ISDIR(state.st_mode):
                os.mkdir(name, 0o700, dir_fd=dir_fd)
                change_mode(name, stat.S_IMODE(state.st_mode) & 0o777 | 0o700, dir_fd=dir_fd)  # whatever the umask
            elif stat.S_ISLNK(state.st_mode):
                self._copy_link(parts, dir_fd, name)
            elif stat.S_ISREG(state.st_mode):
                self._copy_file(parts, state, dir_fd, name)

    def _copy_link(self, parts: Parts, dir_fd: int, name: str) -> None:
        with self._lower.parent(parts) as (from_fd, own):
            target = os.readlink(own, dir_fd=from_fd)
        self._remove_tree(dir_fd, name)
        temporary = temporary_name()
        os.symlink(target, temporary, dir_fd=dir_fd)
        os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def _copy_file(self, parts: Parts, state: os.stat_result, dir_fd: int, name: str) -> None:
        self._remove_tree(dir_fd, name)
        with self._lower.file(parts) as source, temporary_file(dir_fd) as (target, temporary):
            content.copy(source, target)
            os.fchmod(target, stat.S_IMODE(state.st_mode) & 0o777)
            os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))
            os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def _remove(self, parts: Parts) -> None:
        with suppress(FileNotFoundError), self._merged.parent(parts) as (dir_fd, name):
            self._remove_tree(dir_fd, name)
            os.unlink(name, dir_fd=dir_fd)

    def _remove_tree(self, dir_fd: int, name: str) -> None:
        """Remove a directory; other entries are left alone."""
        with suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
                remove_trees(dir_fd, [name])

    def _make_parents(self, parts: Parts) -> None:
        for count in range(1, len(parts)):
            with self._merged.parent(parts[:count]) as (dir_fd, name), suppress(FileExistsError):
                make_directory(name, 0o755, dir_fd=dir_fd)

    def _remove_new_parents(self, parts: Parts, lower: Lower) -> None:
        """Remove parents that the guest created and that are now empty."""
        for count in range(len(parts) - 1, 0, -1):
            if lower.stat(parts[:count]) is not None:
                return
            with suppress(OSError), self._merged.parent(parts[:count]) as (dir_fd, name):
                os.rmdir(name, dir_fd=dir_fd)
