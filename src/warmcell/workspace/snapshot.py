"""Snapshots: private copies of a workspace, kept under ids that cannot be guessed or turned into paths."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from warmcell.core.errors import SnapshotNotFound
from warmcell.workspace.copy import copy_tree
from warmcell.workspace.names import Parts, shown
from warmcell.workspace.private_directory import PrivateDirectory
from warmcell.workspace.remove import clear, remove
from warmcell.workspace.root import Root
from warmcell.workspace.walk import TreeLimits

_ID = re.compile(r"[0-9a-f]{32}")


class SnapshotId(str):
    """Names a snapshot. `skipped` lists what could not be copied: FIFOs, sockets, devices, unreadable files."""

    __slots__ = ("skipped",)
    skipped: tuple[str, ...]

    def __new__(cls, value: str, skipped: tuple[str, ...] = ()) -> SnapshotId:
        made = super().__new__(cls, value)
        made.skipped = skipped
        return made


class SnapshotStore:
    """A directory of snapshots, for its owner's eyes only. Without a path it is temporary and goes with `close`."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._private = PrivateDirectory("snapshots") if path is None else None
        where = self._private.path if self._private else os.fspath(path or "")
        Path(where).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = Root(where)

    def take(self, source: Root, limits: TreeLimits | None = None) -> SnapshotId:
        """Copies the whole tree; nothing is left of a copy that fails."""
        parts: Parts = (secrets.token_hex(16),)
        os.mkdir(parts[0], 0o700, dir_fd=self._root.fd)
        target = self._open(parts)
        try:
            copied = copy_tree(source, target, limits=limits)
        except BaseException:
            remove(self._root, parts)
            raise
        finally:
            target.close()
        return SnapshotId(parts[0], copied.skipped)

    def restore(self, snapshot: str, target: Root, limits: TreeLimits | None = None) -> None:
        """Empties the target and fills it from the snapshot."""
        source = self._open(self._parts(snapshot))
        try:
            clear(target)
            copy_tree(source, target, limits=limits)
        finally:
            source.close()

    def delete(self, snapshot: str) -> None:
        remove(self._root, self._parts(snapshot))

    def close(self) -> None:
        """Forgets the store; a temporary one is removed with everything in it. May be called twice."""
        self._root.close()
        if self._private is not None:
            self._private.close()

    def _parts(self, snapshot: str) -> Parts:
        """The directory of an id. Only ids of our own making have this form, so no id can be a path."""
        if isinstance(snapshot, str) and _ID.fullmatch(snapshot) and self._has(snapshot):
            return (str(snapshot),)
        raise SnapshotNotFound(f"no snapshot {shown(str(snapshot))!r}")

    def _has(self, name: str) -> bool:
        return os.access(name, os.F_OK, dir_fd=self._root.fd, follow_symlinks=False)

    def _open(self, parts: Parts) -> Root:
        return Root(os.path.join(self._root.path, *parts))
