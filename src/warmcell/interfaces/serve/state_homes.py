"""The files of sandboxes and snapshots below `--state`: plain where they are used, or an encrypted copy of them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from warmcell.core.errors import SandboxError, SnapshotInvalid, SnapshotNotFound
from warmcell.core.types import MIB
from warmcell.workspace.copy import copy_tree
from warmcell.workspace.private_directory import PrivateDirectory
from warmcell.workspace.remove import remove_directory
from warmcell.workspace.root import Root
from warmcell.workspace.snapshot import SnapshotId
from warmcell.workspace.walk import TreeLimits
from warmcell.workspaces.snapshots.archive import SnapshotArchive

_log = logging.getLogger("warmcell.serve")
#: Bounds what a guest controls: names are in memory while its files are saved.
LIMITS = TreeLimits(entries=500_000, total_bytes=1 << 40, path_bytes=128 * MIB, seconds=300.0)
#: Directories that are saved or loaded at the same time.
_slots = threading.BoundedSemaphore(4)


class SealedFiles:
    """An encrypted copy of a directory's files, below `path`, which `save` makes. Blocking: call in a thread.

    Each is a small chunk store (`workspaces/snapshots/archive.py`) whose key is derived from its place, so a moved one
    cannot be read. `save` adds a version. The record that names it, also encrypted, is written after that, and previous
    versions are removed last: a kill at any point leaves the previous version or the new one.
    """

    def __init__(self, path: str, key: bytes) -> None:
        self.path, self._key = path, key

    def save(self, directory: str) -> SnapshotId:
        """Save the directory as a new version; return its id, which lists the files that could not be saved."""
        with _slots:
            archive = SnapshotArchive(self.path, key=self._key)
            try:
                return archive.take(directory, None, {}, LIMITS).id
            except BaseException:
                with suppress(SandboxError, OSError):
                    archive.compact()  # removes what was written for it
                raise

    def load(self, target: Root, version: str | None = None) -> None:
        """Write a version (None: the only one) into an empty directory. Raises `SandboxError`, also for damage."""
        if not os.path.isdir(self.path):
            raise SnapshotNotFound("its saved files are missing")
        with _slots:
            archive = SnapshotArchive(self.path, key=self._key)
            archive.restore(_find_only(archive) if version is None else version, target, is_durable=False)

    def keep_only(self, version: str) -> None:
        """Remove the other versions. A failure is logged; the next call tries again."""
        try:
            with _slots:
                SnapshotArchive(self.path, key=self._key).keep_only(version)
        except (SandboxError, OSError) as error:
            _log.warning("cannot remove previous versions in %s: %s", self.path, error)

    def remove(self) -> None:
        remove_directory(self.path)


def _find_only(archive: SnapshotArchive) -> str:
    found = archive.identities()
    if len(found) != 1:
        raise SnapshotInvalid(f"expected one saved version, found {len(found)}", hint="restore it from a backup")
    return found[0]


class State(Protocol):
    """The part of `SavedState` that a home uses."""

    path: str
    is_closing: bool


class StateHome:
    """A directory below the state. `close` removes it, unless the server is stopping or `is_kept` is set.

    `is_kept` is set while its sandbox is restored: if that fails, the files stay for the next server.
    """

    def __init__(self, state: State, name: str) -> None:
        self._state, self.name, self.is_kept = state, name, False
        self.path = os.path.join(state.path, "homes", name)
        #: With encryption: the version that the sandbox's record names, and the files that could not be saved.
        self.version: str | None = None
        self.skipped: tuple[str, ...] = ()

    @property
    def is_removed_at_close(self) -> bool:
        return not self._state.is_closing and not self.is_kept

    def save(self) -> None:
        """Does nothing: plain files are in their place already."""

    def drop_previous_versions(self) -> None:
        """Called when the record that names the present version is on disk."""

    def copy_to(self, target: Root) -> None:
        with Root(self.path) as source:
            copy_tree(source, target)

    def close(self) -> None:
        if self.is_removed_at_close:
            remove_directory(self.path)


class EncryptedHome(StateHome):
    """A home with plain files in a temporary directory, `path`. `save` writes an encrypted copy below the state."""

    def __init__(self, state: State, name: str, sealed: SealedFiles) -> None:
        super().__init__(state, name)
        self._sealed, self._private = sealed, PrivateDirectory("work")
        self.path = self._private.path

    def load(self, version: str) -> None:
        with Root(self.path) as target:
            self._sealed.load(target, version)
        self.version = version

    def save(self) -> None:
        made = self._sealed.save(self.path)
        self.version, self.skipped = str(made), made.skipped

    def drop_previous_versions(self) -> None:
        if self.version is not None:
            self._sealed.keep_only(self.version)

    def close(self) -> None:
        try:
            self._private.close()
        finally:
            if self.is_removed_at_close:
                self._sealed.remove()


class EncryptedSnapshot(StateHome):
    """The files of a snapshot. No sandbox uses them, so there is no plain copy."""

    def __init__(self, state: State, name: str, sealed: SealedFiles) -> None:
        super().__init__(state, name)
        self._sealed = sealed

    def copy_to(self, target: Root) -> None:
        self._sealed.load(target)


class LoadedPackages(NamedTuple):
    """A directory to copy packages from."""

    path: str
    close: Callable[[], None] = lambda: None


Home = PrivateDirectory | StateHome
