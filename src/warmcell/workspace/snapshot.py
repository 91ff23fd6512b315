"""Snapshots: private copies of a workspace, under random ids that cannot be paths."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from warmcell.core.errors import SnapshotNotFound
from warmcell.core.light import on_error
from warmcell.lifetime.own_modes import make_directory
from warmcell.workspace.copy import copy_tree
from warmcell.workspace.names import Parts, display_path
from warmcell.workspace.private_directory import PrivateDirectory
from warmcell.workspace.remove import clear, remove
from warmcell.workspace.root import DIRECTORY_SPACE, Quota, Root
from warmcell.workspace.walk import TreeLimits

_ID = re.compile(r"[0-9a-f]{32}")
_NO_LIMIT_MB = 1 << 40
#: A snapshot was taken within limits. Restoring it may take longer, or find fewer holes.
_NO_LIMITS = TreeLimits(entries=1 << 62, total_bytes=1 << 62, path_bytes=1 << 62, seconds=inf)


class SnapshotId(str):
    """The id of a snapshot. `skipped` lists what could not be copied: FIFOs, sockets, devices, unreadable files."""

    __slots__ = ("skipped",)
    skipped: tuple[str, ...]

    def __new__(cls, value: str, skipped: tuple[str, ...] = ()) -> SnapshotId:
        snapshot = super().__new__(cls, value)
        snapshot.skipped = skipped
        return snapshot


@contextmanager
def replace_content(target: Root) -> Iterator[Root]:
    """Empty the target, and yield it for an earlier state to be written.

    The target may have had more than its limit from the beginning. So its limit does not stop this: the target would be
    left half empty.
    """
    counted = Quota(_NO_LIMIT_MB)
    with Root(target.path, quota=counted, descriptor=target.fd) as emptied:
        with target.replacing():
            freed = clear(emptied)
        before = counted.room
        try:
            yield emptied
        finally:
            target.note_replaced(before - counted.room, freed)


class SnapshotStore:
    """A temporary directory of snapshots, readable only by its owner; `close` removes it.

    `quota` bounds all snapshots together.
    """

    def __init__(self, quota: Quota | None = None) -> None:
        self._private = PrivateDirectory("snapshots")
        self._quota = quota
        self._root = Root(self._private.path, quota=quota)

    def take(self, source: Root, limits: TreeLimits | None = None) -> SnapshotId:
        """Copy the whole tree. A copy that fails is removed."""
        parts: Parts = (secrets.token_hex(16),)
        with self._root.charge(parts, DIRECTORY_SPACE):
            make_directory(parts[0], dir_fd=self._root.fd)
        with on_error(lambda: remove(self._root, parts)), self._open(parts) as target:
            copied = copy_tree(source, target, limits=limits)
        return SnapshotId(parts[0], copied.skipped)

    def restore(self, snapshot: str, target: Root) -> None:
        """Replace the content of the target by the snapshot."""
        with self._open(self._parts(snapshot)) as source, replace_content(target) as emptied:
            copy_tree(source, emptied, limits=_NO_LIMITS)

    def copy(self, snapshot: str, target: Root) -> None:
        """Copy the snapshot into an empty target, within its limit."""
        with self._open(self._parts(snapshot)) as source:
            copy_tree(source, target)

    def remove(self, snapshot: str) -> None:
        """Remove one snapshot."""
        remove(self._root, self._parts(snapshot))

    def close(self) -> None:
        """Remove the store. Idempotent."""
        self._root.close()
        self._private.close()

    def _parts(self, snapshot: str) -> Parts:
        """The directory of an id. The pattern admits no path separator, so an id cannot be a path."""
        if isinstance(snapshot, str) and _ID.fullmatch(snapshot) and self._has(snapshot):
            return (str(snapshot),)
        raise SnapshotNotFound(f"no snapshot {display_path(str(snapshot))!r}")

    def _has(self, name: str) -> bool:
        return os.access(name, os.F_OK, dir_fd=self._root.fd, follow_symlinks=False)

    def _open(self, parts: Parts) -> Root:
        return Root(os.path.join(self._root.path, *parts), quota=self._quota)
