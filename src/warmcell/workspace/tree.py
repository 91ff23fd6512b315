"""Whole trees: walk and remove. Nothing follows a link, blocks on a special file, or needs a descriptor per level."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from warmcell.core.errors import PathTraversal
from warmcell.core.types import MIB
from warmcell.workspace.errors import LimitExceeded, WorkspaceError
from warmcell.workspace.files import TEMP_PREFIX
from warmcell.workspace.names import MAX_PATH_BYTES, Parts
from warmcell.workspace.paths import OPEN_DIRECTORY, OPEN_FILE, Root, explained, text_of

MAX_TREE_ENTRIES = 100_000
EntryKind = Literal["file", "directory", "symlink", "other"]


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """How large a tree may be before an operation on all of it gives up with `LimitExceeded`."""

    entries: int = MAX_TREE_ENTRIES
    total_bytes: int = 1024 * MIB


@dataclass(frozen=True, slots=True)
class Found:
    """One entry of a tree. `dir_fd` is its directory, open until the walk goes on."""

    parts: Parts
    kind: EntryKind
    state: os.stat_result
    dir_fd: int

    @property
    def name(self) -> str:
        return self.parts[-1]


def kind_of(mode: int) -> EntryKind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def walk(root: Root, start: Parts = (), max_entries: int = MAX_TREE_ENTRIES) -> Iterator[Found]:
    """Every entry beneath `start`, parents before children. Each directory is opened from the root by its path.

    Names can disappear or change kind while we walk, since a guest may be running: what is gone is left out.
    """
    waiting, seen = [start], 0
    while waiting:
        here = waiting.pop()
        with contextlib.ExitStack() as stack:
            try:
                fd = stack.enter_context(root.directory(here))
            except (WorkspaceError, PathTraversal):
                if here == start:
                    raise
                continue
            for name in _names_in(fd, here, max_entries - seen):
                seen += 1
                found = _look(fd, (*here, name))
                if found is None:
                    continue
                yield found
                if found.kind == "directory":
                    waiting.append(_checked_depth(found.parts))


def _names_in(fd: int, here: Parts, room: int) -> list[str]:
    names: list[str] = []
    with explained(here), os.scandir(fd) as entries:
        for entry in entries:
            if len(names) >= room:
                raise LimitExceeded(text_of(here), "belongs to a tree with too many entries", limit=room)
            names.append(entry.name)
    return sorted(names)


def _look(fd: int, parts: Parts) -> Found | None:
    try:
        state = os.stat(parts[-1], dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return Found(parts, kind_of(state.st_mode), state, fd)


def open_found(found: Found) -> int | None:
    """A file of a walk, open for reading; None when it is gone, closed to us, or was swapped for something else."""
    try:
        fd = os.open(found.name, OPEN_FILE, dir_fd=found.dir_fd)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def _checked_depth(parts: Parts) -> Parts:
    if len(os.fsencode("/".join(parts))) + 256 > MAX_PATH_BYTES:
        raise LimitExceeded(text_of(parts)[:200], "is too deep a tree", limit=MAX_PATH_BYTES)
    return parts


def remove(root: Root, parts: Parts, *, recursive: bool = True, max_entries: int = 1_000_000) -> None:
    """Removes a file, or a directory with all that is in it. Links inside are unlinked, what they name stays."""
    with root.parent(parts) as (dir_fd, name), explained(parts):
        mode = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise PathTraversal(text_of(parts), "is a link or special file; remove it inside the sandbox")
        if stat.S_ISREG(mode):
            os.unlink(name, dir_fd=dir_fd)
        elif recursive:
            _remove_trees(dir_fd, [name], max_entries)
        else:
            os.rmdir(name, dir_fd=dir_fd)


def clear(root: Root) -> None:
    """Empties the workspace of everything, however deep and however little of it is readable."""
    os.fchmod(root.fd, stat.S_IMODE(os.fstat(root.fd).st_mode) | 0o700)
    for _ in range(_TRIES):
        _remove_trees(root.fd, _unlink_files(root.fd), None)
        if not os.listdir(root.fd):
            return
    raise WorkspaceError(root.path, "could not be emptied: something keeps writing into it")


#: A guest that is still running can put new names where we have just cleaned; it wins only so many times.
_TRIES = 64


def _remove_trees(dir_fd: int, waiting: list[str], max_entries: int | None) -> None:
    """Empties directories from the top: each subdirectory is first moved up beside its parent.

    That keeps two descriptors open whatever the depth, and never has to find the way back through "..",
    which a guest could move.
    """
    handled, stubborn = 0, 0
    while waiting:
        name = waiting.pop()
        moved, is_gone = _empty_one(dir_fd, name)
        waiting += moved if is_gone else [name, *moved]
        handled, stubborn = handled + 1, stubborn + (not is_gone)
        if max_entries is not None and handled > max_entries:
            raise LimitExceeded(name, "holds too many directories to remove in one call", limit=max_entries)
        if stubborn > _TRIES:
            raise WorkspaceError(name, "could not be removed: something keeps writing into it")


def _empty_one(dir_fd: int, name: str) -> tuple[list[str], bool]:
    """Empties one directory and removes it; returns the subdirectories, moved up, and whether it is gone."""
    try:
        fd = _open_at_any_cost(dir_fd, name)
    except FileNotFoundError:
        return [], True
    moved = []
    try:
        for child in _unlink_files(fd):
            moved.append(TEMP_PREFIX + secrets.token_hex(12))
            _move_at_any_cost(child, fd, moved[-1], dir_fd)
    finally:
        os.close(fd)
    return moved, _rmdir(dir_fd, name)


def _rmdir(dir_fd: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _unlink_files(fd: int) -> list[str]:
    """Unlinks everything in a directory that is not a directory; returns the names of those that are."""
    directories = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
                continue
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(entry.name, dir_fd=fd)
    return directories


def _open_at_any_cost(dir_fd: int, name: str) -> int:
    try:
        fd = os.open(name, OPEN_DIRECTORY, dir_fd=dir_fd)
    except PermissionError:
        _grant(dir_fd, name)
        fd = os.open(name, OPEN_DIRECTORY, dir_fd=dir_fd)
    if os.fstat(fd).st_mode & 0o700 != 0o700:
        os.fchmod(fd, 0o700)
    return fd


def _move_at_any_cost(name: str, from_fd: int, new: str, to_fd: int) -> None:
    try:
        os.rename(name, new, src_dir_fd=from_fd, dst_dir_fd=to_fd)
    except PermissionError:
        _grant(from_fd, name)
        os.rename(name, new, src_dir_fd=from_fd, dst_dir_fd=to_fd)


def _grant(dir_fd: int, name: str) -> None:
    """Makes a directory that its guest closed to everyone usable for its owner again, without following a link."""
    if not hasattr(os, "O_PATH"):
        os.chmod(name, 0o700, dir_fd=dir_fd, follow_symlinks=False)
        return
    fd = os.open(name, os.O_PATH | OPEN_DIRECTORY, dir_fd=dir_fd)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)
