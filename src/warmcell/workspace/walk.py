"""Walks trees within limits on everything that a guest controls: entries, depth, length of names, time."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from warmcell.core.errors import PathTraversal
from warmcell.core.light import Closing
from warmcell.core.types import MIB
from warmcell.workspace.errors import AccessDenied, FileMissing, LimitExceeded, WrongKind
from warmcell.workspace.names import MAX_PATH_BYTES, Parts
from warmcell.workspace.root import (
    OPEN_DIRECTORY,
    OPEN_FILE,
    Root,
    check_parts,
    open_one,
    text_of,
    to_workspace_error,
    translate_os_errors,
)

#: Bounds the descriptors used for a deep tree. After climbing past the last open directory, one call reopens an
#: ancestor half as many levels up and walks down from there, so that the next steps up find open directories.
_KEPT_OPEN = 64


class Descent(Closing):
    """Opens directories beneath a root, one name at a time. With `create`, missing ones are created.

    The last ones stay open, so that walking a tree in order is linear in its entries at any depth. Opening each by its
    whole path would cost entries times depth, and a guest chooses both.

    `created` has, for each call that created directories, the path and the depth of the first one.
    """

    def __init__(self, root: Root, *, create: bool = False) -> None:
        self._root, self._create = root, create
        self._path: list[str] = []
        self._fds: list[int] = []
        self.created: list[tuple[Parts, int]] = []

    def enter(self, parts: Parts) -> int:
        """Open a directory. The descriptor is valid until the next call."""
        common = _common(self._path, check_parts(parts))
        self._climb(common)
        if common and not self._fds:
            self._return_to(parts[: max(0, common - _KEPT_OPEN // 2)])
        for depth in range(len(self._path), len(parts)):
            self._step(parts, depth)
        return self._fds[-1] if self._fds else self._root.fd

    def close(self) -> None:
        self._climb(0)

    def _climb(self, depth: int) -> None:
        while len(self._path) > depth:
            self._path.pop()
            if self._fds:
                os.close(self._fds.pop())

    def _return_to(self, parts: Parts) -> None:
        self._path.clear()
        if parts:
            self._fds.append(self._root.open_directory(parts))
            self._path += parts

    def _step(self, parts: Parts, depth: int) -> None:
        here, name = self._fds[-1] if self._fds else self._root.fd, parts[depth]
        try:
            child = self._open(here, name, parts, depth)
        except OSError as error:
            raise to_workspace_error(error, parts[: depth + 1]) from None
        self._path.append(name)
        self._fds.append(child)
        if len(self._fds) > _KEPT_OPEN:
            os.close(self._fds.pop(0))

    def _open(self, here: int, name: str, parts: Parts, depth: int) -> int:
        try:
            return open_one(here, name, OPEN_DIRECTORY)
        except FileNotFoundError:
            if not self._create:
                raise
        self._root.make_one(here, name, parts[: depth + 1])
        if not self.created or self.created[-1][0] != parts:
            self.created.append((parts, depth))
        return open_one(here, name, OPEN_DIRECTORY)


def _common(path: list[str], parts: Parts) -> int:
    """The length of the common prefix of two paths."""
    for depth, (ours, theirs) in enumerate(zip(path, parts, strict=False)):
        if ours != theirs:
            return depth
    return min(len(path), len(parts))


#: "closed" is a directory that cannot be listed, so its content is unknown.
EntryKind = Literal["file", "directory", "symlink", "other", "closed"]


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """Limits on a tree; beyond them operations raise `LimitExceeded`.

    `path_bytes` counts the whole path of every entry, so that depth counts too.
    """

    entries: int = 100_000
    total_bytes: int = 1024 * MIB
    path_bytes: int = 16 * MIB
    seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One entry of a tree. `dir_fd` is its directory, open until the walk continues."""

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


def walk(root: Root, start: Parts = (), limits: TreeLimits | None = None) -> Iterator[TreeEntry]:
    """Yield every entry beneath `start`, parents before children.

    A guest may be running, so names can disappear or change type during the walk; missing ones are skipped. A directory
    that cannot be listed is yielded a second time, as "closed".
    """
    budget = _Budget(limits or TreeLimits())
    waiting: list[TreeEntry | Parts] = [start]
    with Descent(root) as descent:
        while waiting:
            at = waiting.pop()
            here = at.parts if isinstance(at, TreeEntry) else at
            try:
                entries = _entries(descent.enter(here), here, budget)
            except (AccessDenied, FileMissing, WrongKind, PathTraversal) as error:
                if not isinstance(at, TreeEntry):
                    raise
                if isinstance(error, AccessDenied):
                    yield TreeEntry(here, "closed", at.state, -1)
                continue
            yield from entries
            waiting += [entry for entry in reversed(entries) if entry.kind == "directory"]


def _entries(fd: int, here: Parts, budget: _Budget) -> list[TreeEntry]:
    """The entries of an open directory, sorted by name. One that can be listed but not searched is closed too."""
    depth_bytes = sum(map(len, map(os.fsencode, here))) + len(here)
    with translate_os_errors(here):
        names = []
        with os.scandir(fd) as listed:
            for entry in listed:
                budget.take(here, depth_bytes + len(os.fsencode(entry.name)))
                names.append(entry.name)
        found = [_look(fd, (*here, name)) for name in sorted(names)]
    return [entry for entry in found if entry is not None]


def _look(fd: int, parts: Parts) -> TreeEntry | None:
    try:
        state = os.stat(parts[-1], dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return TreeEntry(parts, kind_of(state.st_mode), state, fd)


class _Budget:
    """The remaining budget of a walk."""

    def __init__(self, limits: TreeLimits) -> None:
        self._limits = limits
        self._entries, self._path_bytes = limits.entries, limits.path_bytes
        self._deadline = time.monotonic() + limits.seconds

    def take(self, here: Parts, size: int) -> None:
        """Charge one entry, whose whole path has `size` bytes."""
        self._entries -= 1
        self._path_bytes -= size
        if size > MAX_PATH_BYTES:
            raise self._limit_error(here, "is too deep", MAX_PATH_BYTES)
        if self._entries < 0:
            raise self._limit_error(here, "is in a tree with too many entries", self._limits.entries)
        if self._path_bytes < 0:
            raise self._limit_error(here, "is in a tree with too many bytes of paths", self._limits.path_bytes)
        if time.monotonic() > self._deadline:
            raise self._limit_error(here, "is in a tree that takes too long to read", int(self._limits.seconds))

    def _limit_error(self, here: Parts, reason: str, limit: int) -> LimitExceeded:
        return LimitExceeded(text_of(here)[:200], reason, limit=limit)


def open_entry(found: TreeEntry) -> int | None:
    """Open a file of a walk for reading; None if it is gone, unreadable or no longer a regular file."""
    return open_file_at(found.dir_fd, found.name)


def open_file_at(dir_fd: int, name: str) -> int | None:
    """Open a regular file for reading; None if it is gone, unreadable or something else."""
    try:
        fd = os.open(name, OPEN_FILE, dir_fd=dir_fd)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None
