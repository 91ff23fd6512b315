"""Artefacts: what compilers made, kept by the hash of what they were made from."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandkeep.core.errors import ExecutionFailed
from sandkeep.languages.program import Build

_LARGEST = 512 * 1024 * 1024
_MOST_KEPT = 256


class Artefacts:
    """A directory per artefact below the user's cache, readable by nobody else. Guests see one of them, read-only."""

    def __init__(self) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        self._root = Path(base) / "sandkeep" / "builds"

    def find(self, build: Build) -> str | None:
        directory = self._root / build.cache_key
        if not _is_ours(directory) or not (directory / build.artefact).is_file():
            return None
        os.utime(directory)
        return str(directory)

    @contextmanager
    def workshop(self) -> Iterator[str]:
        """An empty directory for one build, on the file system where the artefact will stay."""
        root = self._writable_root()
        directory = tempfile.mkdtemp(prefix=".build-", dir=root)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _writable_root(self) -> str:
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            if _is_ours(self._root) and os.access(self._root, os.W_OK):
                return str(self._root)
        except OSError:
            pass
        self._root = Path(tempfile.mkdtemp(prefix="sandkeep-builds-"))  # no home directory: kept for this process only
        return str(self._root)

    def keep(self, build: Build, workshop: str) -> str:
        """Takes the artefact out of the workshop, which a guest's compiler could write to, and into the cache."""
        made = os.path.join(workshop, build.artefact)
        status = os.lstat(made)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise ExecutionFailed("the compiler's output is not a program")
        final = self._root / build.cache_key
        fresh = tempfile.mkdtemp(prefix=".keep-", dir=self._root)
        os.rename(made, os.path.join(fresh, build.artefact))
        os.chmod(os.path.join(fresh, build.artefact), 0o755)
        os.chmod(fresh, 0o755)  # reached only through its 0700 parent, or as a mount
        try:
            os.rename(fresh, final)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)  # somebody else built the same text meanwhile
        self._forget_oldest()
        return str(final)

    def _forget_oldest(self) -> None:
        kept = [entry for entry in os.scandir(self._root) if not entry.name.startswith(".")]
        for entry in sorted(kept, key=lambda entry: entry.stat().st_mtime)[:-_MOST_KEPT]:
            shutil.rmtree(entry.path, ignore_errors=True)


def _is_ours(directory: Path) -> bool:
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
