"""Reads the upper directory of an overlay: what a guest wrote, and what it removed. Its cost is that of the changes.

A whiteout is a character device 0/0, which guests cannot make: a name of the lower directory that was removed. An
opaque directory hides what the lower one has. Redirects are off, so a renamed directory is a copy and a whiteout.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from warmcell.changes.kernel import birth_time
from warmcell.workspace.names import Parts
from warmcell.workspace.root import Root
from warmcell.workspace.walk import TreeEntry, TreeLimits, walk

#: "deleted": a whiteout.
FoundKind = Literal["file", "symlink", "directory", "other", "closed", "deleted"]
OPAQUE, _ORIGIN = "user.overlay.opaque", "user.overlay.origin"
_LIMITS = TreeLimits(entries=2_000_000, path_bytes=1 << 28, seconds=600.0)


@dataclass(frozen=True, slots=True)
class Found:
    """One entry. `dir_fd` is open until the next one is taken. `copied_ns`: when the kernel copied it from below."""

    parts: Parts
    kind: FoundKind
    state: os.stat_result
    dir_fd: int
    is_opaque: bool = False
    copied_ns: int = 0

    @property
    def name(self) -> str:
        return self.parts[-1]


class UpperDirectory:
    """The upper directory, open. No guest can replace it: guests see the overlay only."""

    def __init__(self, path: str) -> None:
        self.root = Root(path)

    def entries(self) -> Iterator[Found]:
        for entry in walk(self.root, (), _LIMITS):
            yield _describe(entry)

    def close(self) -> None:
        self.root.close()


def is_whiteout(state: os.stat_result) -> bool:
    return stat.S_ISCHR(state.st_mode) and state.st_rdev == 0


def _describe(entry: TreeEntry) -> Found:
    if is_whiteout(entry.state):
        return Found(entry.parts, "deleted", entry.state, entry.dir_fd)
    is_opaque, copied = False, 0
    if entry.kind == "directory":
        is_opaque = _attribute(entry, OPAQUE) == b"y"
    elif entry.kind == "file" and _attribute(entry, _ORIGIN):
        copied = birth_time(entry.dir_fd, entry.name)
    return Found(entry.parts, entry.kind, entry.state, entry.dir_fd, is_opaque, copied)


def _attribute(entry: TreeEntry, name: str) -> bytes:
    """By way of the descriptor of the directory: no call takes a directory and a name for attributes."""
    try:
        return os.getxattr(f"/proc/self/fd/{entry.dir_fd}/{entry.name}", name, follow_symlinks=False)
    except OSError:  # it has none, or permissions forbid reading it
        return b""
