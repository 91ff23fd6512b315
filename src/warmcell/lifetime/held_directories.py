"""Directories that are locked by the process that uses them. One without a lock was left by a process that was killed.

The kernel releases the lock however its holder ends. So a process that can take the lock knows that the directory is
not in use, without comparing times or process ids.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator

from warmcell.core.light import Closing, suppress
from warmcell.lifetime.descriptors import is_shortage
from warmcell.lifetime.ownership import fork_lock, own

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTEMPTS = 64
#: Our temporary directories are named `warmcell-<kind>-<random>`.
_KINDS = "bench builds code doctor go node packages probe run serve snapshots tmp work".split()
UNFINISHED_BUILDS = (".build-", ".keep-")
UNFINISHED_LIBRARIES = (".go-",)
#: Layers of images that are being unpacked or removed.
UNFINISHED_LAYERS = (".unpack-",)
PREFIXES = tuple(f"warmcell-{kind}-" for kind in _KINDS)


class HeldDirectory(Closing):
    """A directory and the lock on it. After a fork of the program it still belongs to the parent.

    As a context manager it is released at the end of the block.
    """

    def __init__(self, path: str, lock: int) -> None:
        self.path, self._lock = path, lock
        #: Whether this process may remove it. False in a fork.
        self.is_ours = True
        own(self)

    def abandon(self) -> None:
        """Closes the fork's descriptor. That does not release the lock, which belongs to the open file description."""
        self.is_ours = False
        self.release()

    def share(self) -> None:
        """Turns the lock into a shared one, so that others can hold the directory as well."""
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def release(self) -> None:
        """Releases the lock; another process may now remove the directory. May be called twice."""
        lock, self._lock = self._lock, -1
        if lock < 0:
            return
        if self.is_ours:  # closing alone leaves it to a child of ours that has not executed its program yet
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)

    close = release


def default_temporary_directory() -> str:
    """The first directory that `tempfile` would try, without importing it."""
    return next((os.environ[name] for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)), "/tmp")


def writable_directory() -> str | None:
    """A directory for small temporary files: in memory if all disks are full or read-only."""
    import tempfile

    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def user_directory(variable: str, *usual: str) -> str:
    """The directory that a variable of XDG names, else `usual` below the home directory.

    Never a relative path: the working directory, where guests may write, would choose it. For a user without a home
    directory (no HOME, and no entry in passwd) it is below `/`, as in containers.
    """
    named = os.environ.get(variable, "")
    if os.path.isabs(named):
        return named
    home = os.path.expanduser("~")
    return os.path.join(home if os.path.isabs(home) else "/", *usual)


def user_cache() -> str:
    """This user's cache directory for Warmcell."""
    return os.path.join(user_directory("XDG_CACHE_HOME", ".cache"), "warmcell")


def make_cache(path: str) -> None:
    """Creates a directory of the cache and its parent, for this user alone, whatever the umask."""
    from warmcell.lifetime.own_modes import make_directories

    for place in (os.path.dirname(path), path):
        make_directories(place)


def create_held_directory(prefix: str, parent: str | None = None) -> HeldDirectory:
    """Creates a directory for this user alone and locks it."""
    for _ in range(_ATTEMPTS):
        path = _new_directory(prefix, parent)
        try:
            held = hold(path)
        except OSError:
            os.rmdir(path)
            raise
        if held is not None:  # None: another process's sweep removed it before we locked it
            return held
    raise FileExistsError(
        f"another program removes every directory created in {parent or default_temporary_directory()}"
    )


def _new_directory(prefix: str, parent: str | None) -> str:
    """Like `tempfile.mkdtemp`, which is used only if it is imported already, since the program may have set
    `tempfile.tempdir`, or if the default directory does not work.
    """
    if "tempfile" in sys.modules:
        import tempfile  # waits for another thread that is importing it

        return _usable(tempfile.mkdtemp(prefix=prefix, dir=parent))
    path = os.path.abspath(os.path.join(parent or default_temporary_directory(), prefix + os.urandom(8).hex()))
    from warmcell.lifetime.own_modes import make_directory

    try:
        make_directory(path)
    except OSError as error:
        if is_shortage(error):
            raise
        import tempfile

        return _usable(tempfile.mkdtemp(prefix=prefix, dir=parent))
    return path


def _usable(path: str) -> str:
    try:  # noqa: SIM105 - contextlib takes long to load
        os.chmod(path, 0o700)  # undo the umask
    except FileNotFoundError:
        pass  # another process's sweep has removed it, which `hold` will report
    return path


def hold(path: str, *, is_shared: bool = False) -> HeldDirectory | None:
    """Locks a directory. Returns None if it does not exist, belongs to another user, or is held.

    Raises `OSError` if that cannot be determined, for example for lack of descriptors.
    """
    with fork_lock:
        return _lock_directory(path, is_shared)


def wait_to_hold(path: str, seconds: float, failure: Exception, *, is_shared: bool = False) -> HeldDirectory:
    """Tries `hold` for so many seconds, then raises `failure`."""
    deadline = time.monotonic() + seconds
    while (held := hold(path, is_shared=is_shared)) is None:
        if time.monotonic() > deadline:
            raise failure
        time.sleep(0.02)
    return held


def _lock_directory(path: str, is_shared: bool) -> HeldDirectory | None:
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
    except OSError as error:  # held by another process, or removed
        if is_shortage(error) and error.errno != errno.EWOULDBLOCK:
            os.close(lock)
            raise
    os.close(lock)
    return None


def find_holder(path: str) -> int | None:
    """The pid of the process that holds the directory exclusively, from /proc/locks; None if there is none."""
    try:
        identity = os.stat(path)
        with open("/proc/locks", encoding="ascii") as file:
            lines = [line.split() for line in file]
    except OSError:
        return None
    at = f"{os.major(identity.st_dev):02x}:{os.minor(identity.st_dev):02x}:{identity.st_ino}"
    return next((int(line[4]) for line in lines if line[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and line[5] == at), None)


def _is_still_there(path: str, lock: int) -> bool:
    held, named = os.fstat(lock), os.lstat(path)
    return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino) and held.st_uid == os.geteuid()


def swept_directories() -> list[tuple[str, tuple[str, ...]]]:
    """Where held directories are created, and their prefixes there."""
    builds, go, layers = (os.path.join(user_cache(), name) for name in ("builds", "go", "images/layers"))
    return [
        *((place, PREFIXES) for place in _temporary_directories()),
        (builds, UNFINISHED_BUILDS),
        (go, UNFINISHED_LIBRARIES),
        (layers, UNFINISHED_LAYERS),
    ]


def _temporary_directories() -> tuple[str, ...]:
    """The default, and the one that `tempfile` takes where the default cannot be used or the program has chosen."""
    usual = default_temporary_directory()
    if "tempfile" not in sys.modules and os.access(usual, os.W_OK | os.X_OK):
        return (usual,)
    chosen = writable_directory()
    return (usual,) if chosen is None or chosen == usual else (usual, chosen)


def has_abandoned() -> bool:
    """Whether a sweep would find anything."""
    for parent, prefixes in swept_directories():
        for _ in find_abandoned(parent, prefixes):
            return True
    return False


def find_abandoned(parent: str, prefixes: tuple[str, ...]) -> Iterator[str]:
    """Yields this user's directories with these prefixes that are not held. Holds each while the caller removes it."""
    for name in _names(parent, prefixes):
        try:
            held = hold(os.path.join(parent, name))
        except OSError:  # no descriptors left: sweep another time
            return
        if held is not None:
            with held:
                yield held.path


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
