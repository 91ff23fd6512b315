"""Files that only we wrote: a directory for this user alone, in which every file carries a MAC.

What is kept here is run later, so a file counts only when its MAC is right, and the key of the MACs is in a file that
nobody else can read. A directory that others could write to is not used at all. What this does not stop: somebody with
the same user id, who can read the key as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import time
from collections.abc import Callable

from warmcell.cage.light import read_json, write_json
from warmcell.core.records import dataclass
from warmcell.toolbox.small_digests import is_same_text, keyed_sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SECRET = "secret"
_SECRET_BYTES = 32
_MOST_RECORD_BYTES = 4096
_SMALL_BYTES = 1 << 20
_ALL_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_SUFFIX = ".signed"
#: Whoever begins a file locks it a moment later. What is older and not locked was left by a process that was killed.
_MOMENT_SECONDS = 2.0


class Unusable(Exception):
    """The directory is not safe to use; the reason is the text."""


class Tampered(Exception):
    """A file is not what was written: damaged, or somebody else's."""


@dataclass(frozen=True, slots=True)
class SignedFile:
    """Verified content, as an open file that nobody else can change, and the facts that were kept with it.

    Whoever gets one closes it.
    """

    descriptor: int
    facts: dict[str, Any]
    #: It came with the installation.
    is_shipped: bool = False

    def copy(self) -> SignedFile:
        return SignedFile(os.dup(self.descriptor), self.facts, self.is_shipped)

    def close(self) -> None:
        os.close(self.descriptor)


def cache_directory(name: str) -> str | None:
    """`$XDG_CACHE_HOME/warmcell/<name>`, or None for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "warmcell", name) if os.path.isabs(base) else None


class SignedDirectory:
    """Safe to use from many threads and processes: a file appears whole or not at all."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Makes the directory when it is missing. Raises `Unusable` or `OSError`."""
        self.path = os.fspath(path)
        _prepare(self.path)
        _sweep_unfinished(self.path)
        self._secret = _read_secret(self.path)

    def _place(self, name: str) -> str:
        return os.path.join(self.path, name + _SUFFIX)

    def has(self, name: str) -> bool:
        return os.path.exists(self._place(name))

    def read(self, name: str) -> SignedFile | None:
        """What was written under this name, or None where nothing was. Raises `Tampered`."""
        try:
            descriptor = os.open(self._place(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            with contextlib.suppress(OSError):  # only `prune` wants to know; the disk may be read-only
                os.utime(descriptor)
            record, start = _record(descriptor)
            sealed = sealed_copy(descriptor, start)
        finally:
            os.close(descriptor)
        expected = self._mac(name, record.get("facts"), content_digest(sealed))
        mac = record.get("mac")
        if not isinstance(mac, str) or not mac.isascii() or not is_same_text(expected, mac):
            os.close(sealed)
            raise Tampered(name)
        return SignedFile(sealed, record["facts"])

    def write(self, name: str, content: int, facts: dict[str, Any]) -> None:
        """Keeps the content of an open file. Raises `OSError`, and leaves nothing half-written behind."""
        record = write_json({"facts": facts, "mac": self._mac(name, facts, content_digest(content))}).encode()

        def fill(target: int) -> None:
            with os.fdopen(os.dup(target), "wb") as file, _mapped(content) as data:
                file.write(record + b"\n")
                file.write(data)

        _write_new(self.path, name + _SUFFIX, fill)

    def forget(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._place(name))

    def prune(self, most_bytes: int) -> None:
        """The files that were not used for longest go, until the rest is no larger than this."""
        places = [os.path.join(self.path, name) for name in os.listdir(self.path) if name.endswith(_SUFFIX)]
        files = sorted((os.stat(place).st_mtime, os.stat(place).st_size, place) for place in places)
        total = sum(size for _, size, _ in files)
        for _, size, place in files[:-1]:
            if total <= most_bytes:
                break
            _unlink(place)
            total -= size
        _sweep_unfinished(self.path)

    def _mac(self, name: str, facts: object, digest: str) -> str:
        return keyed_sha256(self._secret, write_json([name, facts, digest], is_sorted=True).encode())


def _prepare(directory: str) -> None:
    """Makes it, for us alone; refuses one that somebody else owns or can write to."""
    above = os.path.dirname(directory)
    for item in (above, directory):
        os.makedirs(item, mode=0o700, exist_ok=True)
    for item in (directory, above):
        found = os.lstat(item)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise Unusable(f"{item} must be a directory of ours that no one else can write to")


def _read_secret(directory: str) -> bytes:
    """The key of the MACs, made when there is none. Of two who make one at once, the first is right."""
    path = os.path.join(directory, _SECRET)
    if not os.path.exists(path):
        with contextlib.suppress(FileExistsError):
            _write_new(directory, _SECRET, lambda target: os.write(target, os.urandom(_SECRET_BYTES)), os.link)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise Unusable(f"{path} can be read by others")
        secret = file.read(_SECRET_BYTES + 1)
    if len(secret) != _SECRET_BYTES:
        raise Unusable(f"{path} is damaged; remove it")
    return secret


def _write_new(
    directory: str,
    name: str,
    fill: Callable[[int], object],
    put_in_place: Callable[[str, str], object] = os.replace,
) -> None:
    """Fills a file that nobody else has open (O_EXCL) and gives it its name when it is whole."""
    temporary = os.path.join(directory, f".{name}.{os.urandom(8).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fill(descriptor)
        put_in_place(temporary, os.path.join(directory, name))
    finally:
        os.close(descriptor)
        _unlink(temporary)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _sweep_unfinished(directory: str) -> None:
    """Removes what killed processes had begun to write: nobody holds the lock of such a file any more."""
    for item in [os.path.join(directory, name) for name in os.listdir(directory) if name.startswith(".")]:
        with contextlib.suppress(OSError):  # finished, or swept by somebody else; or held, which is the point
            descriptor = os.open(item, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                is_old = os.fstat(descriptor).st_mtime < time.time() - _MOMENT_SECONDS
                if is_old:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(item)
            finally:
                os.close(descriptor)


def _record(descriptor: int) -> tuple[dict[str, Any], int]:
    """The first line, and where the content begins. What cannot be read has no right MAC either."""
    line, newline, _ = os.pread(descriptor, _MOST_RECORD_BYTES, 0).partition(b"\n")
    try:
        record = read_json(line)
    except (ValueError, RecursionError):
        record = None
    return (record, len(line) + 1) if newline and isinstance(record, dict) else ({}, 0)


def sealed_copy(descriptor: int, start: int = 0) -> int:
    """The content in memory, where nothing can change it any more: what is verified is what will be run.

    A worker can use it wherever it is confined to, without being able to reach the directory.
    """
    copy = os.memfd_create("warmcell-signed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        done, size = start, os.fstat(descriptor).st_size
        while done < size and (sent := os.sendfile(copy, descriptor, done, size - done)):
            done += sent
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _ALL_SEALS)
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
    with _mapped(descriptor) as content:
        return sha256(content).hexdigest()


def _mapped(descriptor: int) -> contextlib.AbstractContextManager[Any]:
    size = os.fstat(descriptor).st_size
    return mmap.mmap(descriptor, size, prot=mmap.PROT_READ) if size else contextlib.nullcontext(b"")
