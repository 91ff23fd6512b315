"""Directories that belong to a living process. One that nobody holds was left by a process that was killed.

A directory is held by a lock on it, which the kernel lets go of however its holder ends. So whoever can take the lock
knows that nobody needs the directory any more; no clock and no process id has to be believed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Iterator

from warmcell.lifetime.descriptors import is_shortage
from warmcell.lifetime.ownership import own, undisturbed_by_forks

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS = 64
#: What this package makes in the directory for temporary files is called `warmcell-<kind>-<random>`.
_KINDS = ("bench", "builds", "doctor", "go", "packages", "probe", "run", "snapshots", "tmp", "work")
UNFINISHED_BUILDS = (".build-", ".keep-")
UNFINISHED_LIBRARIES = (".go-",)
PREFIXES = tuple(f"warmcell-{kind}-" for kind in _KINDS)


class HeldDirectory:
    """A directory and the lock on it. To a fork of the process it is somebody else's."""

    def __init__(self, path: str, lock: int) -> None:
        self.path = path
        self._lock = lock
        #: Whether it is this process's to remove: a fork that ends must not take it away from the one that goes on.
        self.is_ours = True
        own(self)

    def abandon(self) -> None:
        """The lock belongs to the open directory: that a fork closes its copy does not give it up."""
        self.is_ours = False
        self.let_go()

    def share(self) -> None:
        """From now on others may hold it too."""
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def let_go(self) -> None:
        """Whoever comes next may remove it, or has nothing to remove. May be called twice."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def temporary_place() -> str:
    """As `tempfile` finds it first, without loading that module."""
    return next((os.environ[name] for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)), "/tmp")


def writable_place() -> str | None:
    """For small files that are soon gone again; there is one also where all disks are full, or read-only."""
    import tempfile

    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def cache_place() -> str:
    """What is kept for the runs of one user."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "warmcell")


def make_cache(path: str) -> None:
    """Makes a directory of the cache, and the one above it, for this user alone whatever the umask says."""
    for place in (os.path.dirname(path), path):
        os.makedirs(place, mode=0o700, exist_ok=True)  # the mode is for the last one only


def make_held(prefix: str, parent: str | None = None) -> HeldDirectory:
    """A new directory for this user alone, held from the beginning."""
    for _ in range(_ATTEMPTS):
        path = _new_directory(prefix, parent)
        try:
            held = hold(path)
        except OSError:
            os.rmdir(path)
            raise
        if held is not None:  # between the two steps somebody's sweep may have taken it for abandoned
            return held
    raise FileExistsError(f"something removes each directory that is made in {parent or temporary_place()}")


def _new_directory(prefix: str, parent: str | None) -> str:
    """As `tempfile` makes it. That module is loaded where the first place will not do: it knows others. And where a
    program has it loaded, it may have told it a place.
    """
    if (loaded := sys.modules.get("tempfile")) is not None:
        return str(loaded.mkdtemp(prefix=prefix, dir=parent))
    path = os.path.abspath(os.path.join(parent or temporary_place(), prefix + os.urandom(8).hex()))
    try:
        os.mkdir(path, 0o700)
    except OSError as error:
        if is_shortage(error):
            raise
        import tempfile

        return tempfile.mkdtemp(prefix=prefix, dir=parent)
    return path


def hold(path: str, *, is_shared: bool = False) -> HeldDirectory | None:
    """Takes the lock, or None where the directory is gone, not this user's, or held by somebody else.

    Raises `OSError` for what is no answer to that question, such as having no descriptor left.
    """
    with undisturbed_by_forks:
        return _locked(path, is_shared)


def _locked(path: str, is_shared: bool) -> HeldDirectory | None:
    try:
        lock = os.open(path, _OPEN)
    except OSError as error:
        if is_shortage(error):
            raise
        return None
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        if _is_still_there(path, lock):
            return HeldDirectory(path, lock)
    except OSError as error:  # held by somebody else, or gone meanwhile
        if is_shortage(error) and error.errno != errno.EWOULDBLOCK:
            os.close(lock)
            raise
    os.close(lock)
    return None


def _is_still_there(path: str, lock: int) -> bool:
    held, named = os.fstat(lock), os.lstat(path)
    return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino) and held.st_uid == os.geteuid()


def swept_places() -> list[tuple[str, tuple[str, ...]]]:
    """Where held directories are made, and what they are called there."""
    builds, go = (os.path.join(cache_place(), name) for name in ("builds", "go"))
    return [(temporary_place(), PREFIXES), (builds, UNFINISHED_BUILDS), (go, UNFINISHED_LIBRARIES)]


def has_abandoned() -> bool:
    """Whether a sweep would find anything: those that other programs hold are theirs."""
    for parent, prefixes in swept_places():
        for _ in abandoned(parent, prefixes):
            return True
    return False


def abandoned(parent: str, prefixes: tuple[str, ...]) -> Iterator[str]:
    """This user's directories of these names that nobody holds, each held by us while the caller removes it."""
    for name in _names(parent, prefixes):
        try:
            held = hold(os.path.join(parent, name))
        except OSError:  # whoever has no descriptor to spare sweeps another time
            return
        if held is not None:
            try:
                yield held.path
            finally:
                held.let_go()


def _names(parent: str, prefixes: tuple[str, ...]) -> list[str]:
    try:
        with os.scandir(parent) as entries:
            return [entry.name for entry in entries if entry.name.startswith(prefixes) and _is_own_directory(entry)]
    except OSError:
        return []


def _is_own_directory(entry: os.DirEntry[str]) -> bool:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
