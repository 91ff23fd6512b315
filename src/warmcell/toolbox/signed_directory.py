"""A private directory in which every file carries a MAC.

The files are executed later, so a file is used only if its MAC is valid. The key is in a file that only this user can
read, and a directory that others can write to is not used at all. This does not protect against a process with the same
user id, which can read the key.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import time
from collections.abc import Callable

from warmcell.cage.fast_imports import read_json, write_json
from warmcell.core.light import closing_fd
from warmcell.core.records import dataclass
from warmcell.lifetime.own_modes import grant_owner, make_directories
from warmcell.toolbox.small_digests import is_same_text, keyed_sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SECRET = "secret"
_SECRET_BYTES = 32
_MOST_RECORD_BYTES = 4096
_SMALL_BYTES = 1 << 20
_SUFFIX = ".signed"
#: A writer locks its file right after creating it, unless it has no processor for a while. An older file without a lock
#: belongs to a killed process.
_LOCK_DELAY_SECONDS = 60.0


class Unusable(Exception):
    """The directory is not safe to use; the text says why."""


class Tampered(Exception):
    """A file does not have a valid MAC."""


@dataclass(frozen=True, slots=True)
class SignedFile:
    """Verified content in an open file that cannot change, and the facts stored with it. The receiver closes it."""

    descriptor: int
    facts: dict[str, Any]
    #: Part of the installation.
    is_shipped: bool = False

    def copy(self) -> SignedFile:
        return SignedFile(os.dup(self.descriptor), self.facts, self.is_shipped)

    def close(self) -> None:
        os.close(self.descriptor)


def cache_directory(name: str) -> str | None:
    """`$XDG_CACHE_HOME/warmcell/<name>`, or None for a user without a home directory."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "warmcell", name) if os.path.isabs(base) else None


class SignedDirectory:
    """Safe for concurrent threads and processes: files are replaced atomically."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Creates the directory if it is missing. Raises `Unusable` or `OSError`."""
        self.path = os.fspath(path)
        _prepare(self.path)
        _sweep_unfinished(self.path)
        self._secret = _read_secret(self.path)

    def _path_of(self, name: str) -> str:
        return os.path.join(self.path, name + _SUFFIX)

    def has(self, name: str) -> bool:
        return os.path.exists(self._path_of(name))

    def read(self, name: str) -> SignedFile | None:
        """The file of that name, or None. Raises `Tampered`."""
        try:
            descriptor = os.open(self._path_of(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with closing_fd(descriptor):
            with contextlib.suppress(OSError):  # only for `prune`; the disk may be read-only
                os.utime(descriptor)
            record, start = _record(descriptor)
            sealed = sealed_copy(descriptor, start)
        expected = self._mac(name, record.get("facts"), content_digest(sealed))
        mac = record.get("mac")
        if not isinstance(mac, str) or not mac.isascii() or not is_same_text(expected, mac):
            os.close(sealed)
            raise Tampered(name)
        return SignedFile(sealed, record["facts"])

    def write(self, name: str, content: int, facts: dict[str, Any]) -> None:
        """Stores the content of an open file. Raises `OSError`, and never leaves a partial file."""
        record = write_json({"facts": facts, "mac": self._mac(name, facts, content_digest(content))}).encode()

        def fill(target: int) -> None:
            with os.fdopen(os.dup(target), "wb") as file, _map(content) as data:
                file.write(record + b"\n")
                file.write(data)

        _write_new(self.path, name + _SUFFIX, fill)

    def forget(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path_of(name))

    def prune(self, most_bytes: int) -> None:
        """Removes the least recently used files until the rest fits into `most_bytes`."""
        paths = [os.path.join(self.path, name) for name in os.listdir(self.path) if name.endswith(_SUFFIX)]
        files = sorted((os.stat(path).st_mtime, os.stat(path).st_size, path) for path in paths)
        total = sum(size for _, size, _ in files)
        for _, size, path in files[:-1]:
            if total <= most_bytes:
                break
            _unlink(path)
            total -= size
        _sweep_unfinished(self.path)

    def _mac(self, name: str, facts: object, digest: str) -> str:
        return keyed_sha256(self._secret, write_json([name, facts, digest], is_sorted=True).encode())


def _prepare(directory: str) -> None:
    """Creates the directory, and refuses one that another user owns or can write to."""
    above = os.path.dirname(directory)
    for item in (above, directory):
        make_directories(item)
    for item in (directory, above):
        found = os.lstat(item)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise Unusable(f"{item} must be a directory that you own and no other user can write to")


def _read_secret(directory: str) -> bytes:
    """The key of the MACs, created if missing. If two processes create one at once, the first wins."""
    path = os.path.join(directory, _SECRET)
    if not os.path.exists(path):
        with contextlib.suppress(FileExistsError):
            _write_new(directory, _SECRET, lambda target: os.write(target, os.urandom(_SECRET_BYTES)), os.link)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise Unusable(f"{path} is readable by other users")
        secret = file.read(_SECRET_BYTES + 1)
    if len(secret) != _SECRET_BYTES:
        raise Unusable(f"{path} is damaged; remove it")
    return secret


def _write_new(
    directory: str,
    name: str,
    fill: Callable[[int], object],
    rename: Callable[[str, str], object] = os.replace,
) -> None:
    """Writes a new file (O_EXCL) and gives it its name when it is complete."""
    temporary = os.path.join(directory, f".{name}.{os.urandom(8).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        grant_owner(descriptor)
        _lock(descriptor)
        fill(descriptor)
        rename(temporary, os.path.join(directory, name))
    finally:
        os.close(descriptor)
        _unlink(temporary)


def _lock(descriptor: int) -> None:
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def seal(descriptor: int) -> None:
    """Forbids changes of a file in memory. `OSError` if a process has mapped it for writing."""
    import fcntl

    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _sweep_unfinished(directory: str) -> None:
    """Removes partial files of killed processes: those are not locked any more."""
    for item in [os.path.join(directory, name) for name in os.listdir(directory) if name.startswith(".")]:
        # It may be finished, removed by another process, or still locked.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(OSError), closing_fd(os.open(item, flags)) as descriptor:
            if os.fstat(descriptor).st_mtime < time.time() - _LOCK_DELAY_SECONDS:
                _lock(descriptor)
                os.unlink(item)


def _record(descriptor: int) -> tuple[dict[str, Any], int]:
    """The first line, and the offset of the content. An unreadable record has no valid MAC."""
    line, newline, _ = os.pread(descriptor, _MOST_RECORD_BYTES, 0).partition(b"\n")
    try:
        record = read_json(line)
    except (ValueError, RecursionError):
        record = None
    return (record, len(line) + 1) if newline and isinstance(record, dict) else ({}, 0)


def sealed_copy(descriptor: int, start: int = 0) -> int:
    """A sealed copy in memory, so that the verified content is what will run.

    A confined worker can use it without access to the directory.
    """
    copy = os.memfd_create("warmcell-signed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        done, size = start, os.fstat(descriptor).st_size
        while done < size and (sent := os.sendfile(copy, descriptor, done, size - done)):
            done += sent
        seal(copy)
    except BaseException:
        os.close(copy)
        raise
    return copy


def content_digest(descriptor: int) -> str:
    """SHA-256 of an open file."""
    if os.fstat(descriptor).st_size > _SMALL_BYTES:
        from hashlib import sha256  # faster, and takes longer to load
    else:
        from warmcell.toolbox.small_digests import sha256
    with _map(descriptor) as content:
        return sha256(content).hexdigest()


def _map(descriptor: int) -> contextlib.AbstractContextManager[Any]:
    """Private: before Linux 6.7 a file that is sealed against writing cannot be mapped as shared, not even to read."""
    size = os.fstat(descriptor).st_size
    if not size:
        return contextlib.nullcontext(b"")
    return mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
