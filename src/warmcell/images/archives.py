"""An archive or a directory as a set of named files: how layouts and `docker save` archives are read."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Protocol

from warmcell.core.errors import ImageInvalid
from warmcell.images.blobs import CHUNK, decode_json, read_chunks
from warmcell.images.decompress import LayerReader
from warmcell.images.limits import MAX_JSON_BYTES, Budget
from warmcell.images.tar_reader import read_entries
from warmcell.workspace.root import Root
from warmcell.workspace.untrusted_files import open_regular

_MOST_LINKS = 8


class FileSet(Protocol):
    """Files by path. Paths come from the image, so an implementation confines them."""

    def has(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def chunks(self, path: str) -> Iterator[bytes]: ...


def read_json_file(files: FileSet, path: str) -> object:
    if files.size(path) > MAX_JSON_BYTES:
        raise ImageInvalid(f"{path} is larger than {MAX_JSON_BYTES} bytes")
    return decode_json(b"".join(files.chunks(path)), path)


class DirectoryFiles:
    """The files beneath a directory. Links are refused."""

    def __init__(self, directory: str) -> None:
        self._root = Root(directory)

    def has(self, path: str) -> bool:
        try:
            return stat.S_ISREG(self._root.lstat(_parts(path)).st_mode)
        except OSError:
            return False

    def size(self, path: str) -> int:
        return self._root.lstat(_parts(path)).st_size if self.has(path) else _missing(path)

    def chunks(self, path: str) -> Iterator[bytes]:
        if not self.has(path):
            _missing(path)
        with self._root.file(_parts(path)) as fd:
            while chunk := os.read(fd, CHUNK):
                yield chunk

    def close(self) -> None:
        self._root.close()


class TarFiles:
    """The members of an uncompressed tar file, by offset. Links between members are resolved within the archive."""

    def __init__(self, stream: IO[bytes], budget: Budget) -> None:
        self._stream = stream
        self._members: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        #: The latest modification time of a member.
        self.latest = 0
        self._scan(budget)

    def _scan(self, budget: Budget) -> None:
        reader = SeekingReader(self._stream, budget)
        for entry in read_entries(reader):
            budget.count_entry(entry.path)
            self.latest = max(self.latest, entry.mtime)
            path = os.fsdecode(b"/".join(entry.path))
            self._links.pop(path, None)
            self._members.pop(path, None)
            if entry.kind == "file":
                self._members[path] = (reader.position, entry.size)
            elif entry.kind in ("symlink", "hardlink"):
                base = "" if entry.kind == "hardlink" else posixpath.dirname(path)
                self._links[path] = posixpath.normpath(posixpath.join(base, os.fsdecode(entry.link)))

    def has(self, path: str) -> bool:
        return self._find(path) is not None

    def size(self, path: str) -> int:
        return self._member(path)[1]

    def chunks(self, path: str) -> Iterator[bytes]:
        offset, size = self._member(path)
        self._stream.seek(offset)
        yield from read_chunks(self._stream, size)

    def _member(self, path: str) -> tuple[int, int]:
        found = self._find(path)
        return found if found is not None else (0, _missing(path))

    def _find(self, path: str) -> tuple[int, int] | None:
        path = posixpath.normpath(path)
        for _ in range(_MOST_LINKS):
            if path not in self._links:
                return self._members.get(path)
            path = self._links[path]
        return None


class SeekingReader(LayerReader):
    """Reads headers of a file and skips content without reading it."""

    def __init__(self, stream: IO[bytes], budget: Budget) -> None:
        super().__init__(iter(()), budget, 0)
        self._stream = stream
        self._end = stream.seek(0, os.SEEK_END)
        stream.seek(0)

    @property
    def position(self) -> int:
        return self._stream.tell()

    def read_exactly(self, size: int) -> bytes:
        return self._stream.read(size)

    def skip(self, size: int) -> None:
        if size > self._end - self._stream.tell():
            raise ImageInvalid("the archive is truncated")
        self._stream.seek(size, os.SEEK_CUR)


@contextmanager
def open_archive(path: str) -> Iterator[IO[bytes]]:
    """A regular file of the caller, open for reading."""
    with open(open_regular(path, "path"), "rb") as stream:
        yield stream


def _parts(path: str) -> tuple[str, ...]:
    parts = tuple(path.split("/"))
    if not all(part not in ("", ".", "..") and "\0" not in part for part in parts):
        raise ImageInvalid(f"{path[:200]!r} is not a path within the image")
    return parts


def _missing(path: str) -> int:
    raise ImageInvalid(f"the image has no file {path[:200]!r}")
