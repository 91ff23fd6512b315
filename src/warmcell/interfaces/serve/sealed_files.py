"""SealedFiles: the files of a directory, encrypted, below the `--state` of a server with a key.

Each is a small chunk store (`workspaces/snapshots/archive.py`) whose key is derived from its place: what was moved
there from another one cannot be read. `save` adds a version. The record that names it, which is encrypted too, is
written after that, and former versions are removed last: a kill at any point leaves the former version or the new one.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress

from warmcell.core.errors import SandboxError, SnapshotInvalid, SnapshotNotFound
from warmcell.core.types import MIB
from warmcell.workspace.remove import remove_directory
from warmcell.workspace.root import Root
from warmcell.workspace.snapshot import SnapshotId
from warmcell.workspace.walk import TreeLimits
from warmcell.workspaces.snapshots.archive import SnapshotArchive

_log = logging.getLogger("warmcell.serve")
#: On what a guest chooses: names are kept in memory while its files are saved.
LIMITS = TreeLimits(entries=500_000, total_bytes=1 << 40, path_bytes=128 * MIB, seconds=300.0)
#: Directories that are saved or loaded at the same time.
_turns = threading.BoundedSemaphore(4)


class SealedFiles:
    """Below `path`, which `save` makes. Blocking: call in a thread."""

    def __init__(self, path: str, key: bytes) -> None:
        self.path, self._key = path, key

    def save(self, directory: str) -> SnapshotId:
        """A new version with the files of that directory: its id, which lists what could not be saved."""
        with _turns:
            archive = SnapshotArchive(self.path, key=self._key)
            try:
                return archive.take(directory, None, {}, LIMITS).id
            except BaseException:
                with suppress(SandboxError, OSError):
                    archive.compact()  # removes what was written for it
                raise

    def load(self, target: Root, version: str | None = None) -> None:
        """Write a version into an empty directory; None: the only one. Raises `SandboxError`, also for damage."""
        if not os.path.isdir(self.path):
            raise SnapshotNotFound("its saved files are missing")
        with _turns:
            archive = SnapshotArchive(self.path, key=self._key)
            archive.restore(_find_only(archive) if version is None else version, target, is_durable=False)

    def keep_only(self, version: str) -> None:
        """Remove the other versions. If that fails, the next call does it."""
        try:
            with _turns:
                SnapshotArchive(self.path, key=self._key).keep_only(version)
        except (SandboxError, OSError) as error:
            _log.warning("cannot remove former versions in %s: %s", self.path, error)

    def remove(self) -> None:
        remove_directory(self.path)


def _find_only(archive: SnapshotArchive) -> str:
    found = archive.identities()
    if len(found) != 1:
        raise SnapshotInvalid(f"expected one saved version, found {len(found)}", hint="restore it from a backup")
    return found[0]
