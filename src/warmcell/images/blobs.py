"""Blobs: files named by their sha256, complete and verified, or absent."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import IO, Any

from warmcell.core.errors import ImageInvalid
from warmcell.core.light import Closing, closing_fd, on_error
from warmcell.core.types import MIB
from warmcell.images.limits import MAX_JSON_BYTES
from warmcell.images.references import is_digest
from warmcell.lifetime.own_modes import grant_owner, make_directories
from warmcell.workspace.untrusted_files import parse_json

#: Prefix of files being written. Their writers hold a lock on them, so those without one were left by killed programs.
UNFINISHED = ".blob-"
CHUNK = MIB


class BlobStore:
    """A directory of blobs. Safe with several writers: each writes a file of its own and renames it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def path_of(self, digest: str) -> str:
        return os.path.join(self.path, hex_of(digest))

    def has(self, digest: str) -> bool:
        return os.path.isfile(self.path_of(digest))

    def files(self) -> list[os.DirEntry[str]]:
        """Every file, unfinished ones included."""
        if not os.path.isdir(self.path):
            return []
        with os.scandir(self.path) as entries:
            return list(entries)

    def sweep(self) -> None:
        """Remove files that killed programs have left unfinished."""
        for entry in self.files():
            if entry.name.startswith(UNFINISHED):
                with suppress(OSError):  # it is being written, or has just been finished or removed
                    _remove_unlocked(entry.path)

    def open(self, digest: str) -> IO[bytes]:
        try:
            return open(self.path_of(digest), "rb")
        except FileNotFoundError:
            hint = "import or pull the image again"
            raise ImageInvalid(f"blob {digest} is missing from the store", hint=hint) from None

    def put(self, chunks: Iterable[bytes], digest: str | None = None, size: int | None = None) -> tuple[str, int]:
        """Store the bytes and return their digest and size; `ImageInvalid` if they are not the expected ones."""
        with self.writer() as writer:
            for chunk in chunks:
                writer.write(chunk)
                if size is not None and writer.size > size:
                    raise ImageInvalid(f"{digest or 'a blob'} is longer than the {size} bytes that its manifest states")
            return writer.commit(digest, size), writer.size

    def writer(self) -> BlobWriter:
        make_directories(self.path)
        return BlobWriter(self.path)

    def put_json(self, document: Any) -> tuple[str, int]:
        return self.put([encode_json(document)])

    def read_json(self, digest: str) -> Any:
        with self.open(digest) as stream:
            return decode_json(stream.read(MAX_JSON_BYTES + 1), digest)


class BlobWriter(Closing):
    """A blob being written; `discard`, or the end of a `with` block, removes it unless `commit` was called."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        name = os.urandom(8).hex()
        self._path: str | None = os.path.join(directory, f".new-{name}")
        self._file = open(self._path, "xb")  # noqa: SIM115  # `discard` closes it
        with on_error(self.discard):
            grant_owner(self._file.fileno())
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            place = os.path.join(directory, UNFINISHED + name)
            os.rename(self._path, place)  # only now: a sweep takes a file without a lock for a leftover
            self._path = place
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.size += len(data)
        return self._file.write(data)

    def reopen(self) -> IO[bytes]:
        """Open what was written so far, for reading. `discard` removes it nevertheless."""
        assert self._path is not None
        self._file.flush()
        return open(self._path, "rb")

    def commit(self, digest: str | None = None, size: int | None = None) -> str:
        """Check and publish; returns the digest."""
        found = f"sha256:{self._hash.hexdigest()}"
        if size is not None and self.size != size:
            raise ImageInvalid(f"{digest or 'a blob'} has {self.size} bytes; its manifest states {size}")
        if digest is not None and found != digest:
            raise ImageInvalid(f"a blob's digest is {found}; its manifest states {digest}")
        assert self._path is not None
        # The copy keeps the lock: a sweep must not find the unfinished name without one. Closed before it has its name,
        # since some file systems say only then that they could not write.
        with closing_fd(os.dup(self._file.fileno())):
            self._file.close()
            os.rename(self._path, os.path.join(self._directory, hex_of(found)))
            self._path = None
        return found

    def discard(self) -> None:
        """Remove an uncommitted file. May be called twice."""
        path, self._path = self._path, None
        try:
            self._file.close()  # fails on a full disk, since it writes what is buffered
        finally:
            if path is not None:
                os.unlink(path)

    close = discard


def _remove_unlocked(path: str) -> None:
    """Remove a file; `OSError` if another program holds a lock on it."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)


def hex_of(digest: str) -> str:
    """The hexadecimal part of a digest. No other text of an image becomes a file name in the store."""
    if not isinstance(digest, str) or not is_digest(digest):
        raise ImageInvalid(f"{str(digest)[:100]!r} is not a sha256 digest", hint="other digests are not supported")
    return digest.partition(":")[2]


def read_chunks(stream: IO[bytes], size: int | None = None) -> Iterator[bytes]:
    """The stream, or its next `size` bytes, in chunks."""
    left = size
    while left is None or left > 0:
        chunk = stream.read(CHUNK if left is None else min(CHUNK, left))
        if not chunk:
            return
        left = None if left is None else left - len(chunk)
        yield chunk


def encode_json(document: Any) -> bytes:
    """Canonical encoding: equal documents have equal digests."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def decode_json(data: bytes, what: str) -> Any:
    if len(data) > MAX_JSON_BYTES:
        raise ImageInvalid(f"{what} is larger than {MAX_JSON_BYTES} bytes")
    try:
        return parse_json(data)
    except (ValueError, UnicodeDecodeError) as error:
        raise ImageInvalid(f"{what} is not valid JSON: {error}") from None
