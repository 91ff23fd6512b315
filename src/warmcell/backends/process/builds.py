"""Artefacts: what compilers made, kept by the hash of what they were made from."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from warmcell.core.errors import ExecutionFailed
from warmcell.languages.program import Build

_LARGEST = 512 * 1024 * 1024
_MOST_KEPT = 256


class Artefacts:
    """A directory per artefact below the user's cache, readable by nobody else. Guests see one of them, read-only."""

    def __init__(self) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        self._root = os.path.join(base, "warmcell", "builds")

    def find(self, build: Build) -> str | None:
        directory = os.path.join(self._root, build.cache_key)
        if not _is_ours(directory) or not os.path.isfile(os.path.join(directory, build.artefact)):
            return None
        os.utime(directory)
        return directory

    @contextmanager
    def workshop(self) -> Iterator[str]:
        """An empty directory for one build, on the file system where the artefact will stay."""
        import tempfile

        from warmcell.workspace.remove import remove_directory

        root = self._writable_root()
        directory = tempfile.mkdtemp(prefix=".build-", dir=root)
        try:
            yield directory
        finally:
            remove_directory(directory)

    def _writable_root(self) -> str:
        try:
            os.makedirs(self._root, mode=0o700, exist_ok=True)
            if _is_ours(self._root) and os.access(self._root, os.W_OK):
                return self._root
        except OSError:
            pass
        import tempfile

        self._root = tempfile.mkdtemp(prefix="warmcell-builds-")  # no home directory: kept for this process only
        return self._root

    def keep(self, build: Build, workshop: str) -> str:
        """Takes the artefact out of the workshop, which a guest's compiler could write to, and into the cache."""
        import shutil
        import tempfile

        made = os.path.join(workshop, build.artefact)
        status = os.lstat(made)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise ExecutionFailed("the compiler's output is not a program")
        final = os.path.join(self._root, build.cache_key)
        fresh = tempfile.mkdtemp(prefix=".keep-", dir=self._root)
        os.rename(made, os.path.join(fresh, build.artefact))
        os.chmod(os.path.join(fresh, build.artefact), 0o755)
        os.chmod(fresh, 0o755)  # reached only through its 0700 parent, or as a mount
        try:
            os.rename(fresh, final)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)  # somebody else built the same text meanwhile
        self._forget_oldest()
        return final

    def _forget_oldest(self) -> None:
        import shutil

        kept = [entry for entry in os.scandir(self._root) if not entry.name.startswith(".")]
        for entry in sorted(kept, key=lambda entry: entry.stat().st_mtime)[:-_MOST_KEPT]:
            shutil.rmtree(entry.path, ignore_errors=True)


def _is_ours(directory: str) -> bool:
    try:
        status = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
