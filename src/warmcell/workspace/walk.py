"""Walks whole trees, within limits on everything that a guest can multiply: entries, depth, bytes of names, time."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from warmcell.core.errors import PathTraversal
from warmcell.core.types import MIB
from warmcell.workspace.descent import Descent
from warmcell.workspace.errors import AccessDenied, FileMissing, LimitExceeded, WrongKind
from warmcell.workspace.names import MAX_PATH_BYTES, Parts
from warmcell.workspace.root import OPEN_FILE, Root, explained, text_of

#: "closed" is a directory that may not be looked into: what is in it is not known, which is not the same as nothing.
EntryKind = Literal["file", "directory", "symlink", "other", "closed"]


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """How large a tree may be before an operation on all of it gives up with `LimitExceeded`.

    `path_bytes` counts the whole path of every entry: a thousand files two thousand levels down are a large tree.
    """

    entries: int = 100_000
    total_bytes: int = 1024 * MIB
    path_bytes: int = 16 * MIB
    seconds: float = 120.0


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


def walk(root: Root, start: Parts = (), limits: TreeLimits | None = None) -> Iterator[Found]:
    """Every entry beneath `start`, parents before children, each directory's content together.

    Names can disappear or change kind while we walk, since a guest may be running: what is gone is left out. A
    directory that may not be looked into is told a second time, as "closed".
    """
    budget = _Budget(limits or TreeLimits())
    waiting: list[Found | Parts] = [start]
    with Descent(root) as descent:
        while waiting:
            at = waiting.pop()
            here = at.parts if isinstance(at, Found) else at
            try:
                entries = _entries(descent.enter(here), here, budget)
            except (AccessDenied, FileMissing, WrongKind, PathTraversal) as error:
                if not isinstance(at, Found):
                    raise
                if isinstance(error, AccessDenied):
                    yield Found(here, "closed", at.state, -1)
                continue
            yield from entries
            waiting += [entry for entry in reversed(entries) if entry.kind == "directory"]


def _entries(fd: int, here: Parts, budget: _Budget) -> list[Found]:
    """What is in an open directory, sorted by name. One that can be listed but not searched is closed as well."""
    depth_bytes = sum(map(len, map(os.fsencode, here))) + len(here)
    with explained(here):
        names = []
        with os.scandir(fd) as listed:
            for entry in listed:
                budget.take(here, depth_bytes + len(os.fsencode(entry.name)))
                names.append(entry.name)
        found = [_look(fd, (*here, name)) for name in sorted(names)]
    return [entry for entry in found if entry is not None]


def _look(fd: int, parts: Parts) -> Found | None:
    try:
        state = os.stat(parts[-1], dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return Found(parts, kind_of(state.st_mode), state, fd)


class _Budget:
    """What a walk may still cost."""

    def __init__(self, limits: TreeLimits) -> None:
        self._limits = limits
        self._entries, self._path_bytes = limits.entries, limits.path_bytes
        self._deadline = time.monotonic() + limits.seconds

    def take(self, here: Parts, size: int) -> None:
        """One more entry, whose whole path has that many bytes."""
        self._entries -= 1
        self._path_bytes -= size
        if size > MAX_PATH_BYTES:
            raise self._exceeded(here, "is too deep a tree", MAX_PATH_BYTES)
        if self._entries < 0:
            raise self._exceeded(here, "belongs to a tree with too many entries", self._limits.entries)
        if self._path_bytes < 0:
            raise self._exceeded(here, "belongs to a tree with too long paths", self._limits.path_bytes)
        if time.monotonic() > self._deadline:
            raise self._exceeded(here, "belongs to a tree that takes too long to read", int(self._limits.seconds))

    def _exceeded(self, here: Parts, reason: str, limit: int) -> LimitExceeded:
        return LimitExceeded(text_of(here)[:200], reason, limit=limit)


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
