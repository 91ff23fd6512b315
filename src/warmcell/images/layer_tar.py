"""Writes layers as tar files: from a directory, sorted and owned by root; or entry by entry, for builds."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from math import inf
from typing import Protocol

from warmcell.core.errors import ImageInvalid, InvalidRequest
from warmcell.core.records import dataclass
from warmcell.core.timestamps import limit_tar_time
from warmcell.images.blobs import CHUNK, BlobWriter
from warmcell.images.limits import MAX_PATH_BYTES, Budget
from warmcell.images.tar_reader import BLOCK
from warmcell.workspace.root import Root
from warmcell.workspace.walk import TreeLimits, walk

#: Effectively none: the caller's budget counts entries and bytes.
_LIMITS = TreeLimits(entries=1 << 40, path_bytes=1 << 50, seconds=inf)
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Sink(Protocol):
    def write(self, data: bytes, /) -> int: ...


def write_tree(directory: str, sink: Sink, budget: Budget) -> int:
    """Write the whole tree; returns its latest modification time. Devices, FIFOs and sockets are left out."""
    links: dict[tuple[int, int], str] = {}
    latest = 0
    # GNU's format: names of any length and any bytes, without extended headers.
    with tarfile.open(
        fileobj=sink,  # type: ignore[call-overload]
        mode="w|",
        format=tarfile.GNU_FORMAT,
        encoding="utf-8",
        errors="surrogateescape",
    ) as archive:
        for path, state, dir_fd in _walk(directory):
            budget.count_entry()
            latest = max(latest, int(limit_tar_time(state.st_mtime)))
            _add(archive, path, state, dir_fd, links, budget)
    return latest


def _walk(directory: str) -> Iterator[tuple[str, os.stat_result, int]]:
    """Yield path, status and directory descriptor of every entry, parents first. Links are not followed."""
    yield "", os.stat(directory), -1
    with Root(directory) as root:
        for found in walk(root, limits=_LIMITS):
            path = "/".join(found.parts)
            if found.kind == "closed":
                raise _unreadable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
            yield path, found.state, found.dir_fd


def _add(
    archive: tarfile.TarFile,
    path: str,
    state: os.stat_result,
    dir_fd: int,
    links: dict[tuple[int, int], str],
    budget: Budget,
) -> None:
    entry = tarfile.TarInfo(path or ".")
    entry.mode, entry.mtime = stat.S_IMODE(state.st_mode), int(limit_tar_time(state.st_mtime))
    name = os.path.basename(path)
    if stat.S_ISDIR(state.st_mode):
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
    elif stat.S_ISLNK(state.st_mode):
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, os.readlink(name, dir_fd=dir_fd), 0o777
        archive.addfile(entry)
    elif stat.S_ISREG(state.st_mode):
        first = links.setdefault((state.st_dev, state.st_ino), path) if state.st_nlink > 1 else path
        if first != path:
            entry.type, entry.linkname = tarfile.LNKTYPE, first
            archive.addfile(entry)
        else:
            budget.count_bytes(state.st_size)
            _add_file(archive, entry, name, dir_fd)


def _add_file(archive: tarfile.TarFile, entry: tarfile.TarInfo, name: str, dir_fd: int) -> None:
    try:
        with open(os.open(name, _OPEN, dir_fd=dir_fd), "rb") as file:
            entry.size = os.fstat(file.fileno()).st_size
            archive.addfile(entry, FixedSizeFile(file.read, entry.size))
    except OSError as error:
        raise _unreadable(entry.name, error) from None


class FixedSizeFile(io.RawIOBase):
    """Exactly `size` bytes of a file that may change meanwhile, padded with zeros."""

    def __init__(self, read: Callable[[int], bytes], size: int) -> None:
        self._read, self._left = read, size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        self._left -= wanted
        return self._read(wanted).ljust(wanted, b"\0")


def _unreadable(path: str, error: OSError) -> InvalidRequest:
    hint = "import a tar file that its owner wrote, or change the permissions"
    return InvalidRequest(f"cannot read {path!r}: {(error.strerror or '').lower()}", field="path", hint=hint)


WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"


@dataclass(frozen=True, slots=True)
class Attributes:
    """Mode, owner and time of an entry."""

    mode: int
    uid: int = 0
    gid: int = 0
    mtime: int = 0


class LayerWriter:
    """Writes a layer's tar to a blob. The caller adds parents first."""

    def __init__(self, blob: BlobWriter, budget: Budget) -> None:
        self._blob, self._budget = blob, budget
        self.is_empty = True
        #: The path of each inode with several names, and the inode at each such path.
        self._links: dict[tuple[int, int], str] = {}
        self._inodes: dict[str, tuple[int, int]] = {}

    def finish(self) -> None:
        self._blob.write(bytes(2 * BLOCK))

    def add_directory(self, path: str, attributes: Attributes, *, is_opaque: bool = False) -> None:
        """`is_opaque`: the content that lower layers have in it is hidden."""
        self._add(path, tarfile.DIRTYPE, attributes)
        if is_opaque:
            self._add(f"{path}/{OPAQUE}", tarfile.REGTYPE, Attributes(0), is_whiteout=True)

    def add_symlink(self, path: str, target: str, attributes: Attributes) -> None:
        self._add(path, tarfile.SYMTYPE, attributes, link=target)

    def add_hardlink(self, path: str, target: str, attributes: Attributes) -> None:
        self._add(path, tarfile.LNKTYPE, attributes, link=target)

    def add_whiteout(self, path: str) -> None:
        """Delete a path of the lower layers."""
        directory, name = os.path.split(path)
        self._add(os.path.join(directory, WHITEOUT + name), tarfile.REGTYPE, Attributes(0), is_whiteout=True)

    def add_file(self, path: str, attributes: Attributes, size: int, read: Callable[[int], bytes]) -> None:
        """Add exactly `size` bytes of content, padded with zeros."""
        self._budget.count_bytes(size)
        self._add(path, tarfile.REGTYPE, attributes, size=size, content=FixedSizeFile(read, size))

    def add_linked_file(
        self, path: str, attributes: Attributes, state: os.stat_result, open_file: Callable[[], int]
    ) -> None:
        """Add a regular file, or a hard link if its inode was added before and is still there."""
        inode = (state.st_dev, state.st_ino)
        first = self._links.get(inode, path) if state.st_nlink > 1 else path
        if first != path:
            self.add_hardlink(path, first, attributes)
            return
        with open(open_file(), "rb") as content:
            self.add_file(path, attributes, os.fstat(content.fileno()).st_size, content.read)
        if state.st_nlink > 1:
            self._links[inode], self._inodes[path] = path, inode

    def _add(
        self,
        path: str,
        kind: bytes,
        attributes: Attributes,
        *,
        link: str = "",
        size: int = 0,
        content: FixedSizeFile | None = None,
        is_whiteout: bool = False,
    ) -> None:
        self._budget.count_entry()
        if (replaced := self._inodes.pop(path, None)) is not None:
            del self._links[replaced]
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise ImageInvalid(f"a path of the layer has more than {MAX_PATH_BYTES} bytes: {path[:80]!r}...")
        name = os.path.basename(path)
        if name.startswith(WHITEOUT) and not is_whiteout:
            reason = f"names that begin with {WHITEOUT!r} mark deleted files in images"
            raise ImageInvalid(f"cannot add {path!r} to a layer: {reason}", hint="rename the file")
        entry = tarfile.TarInfo(path or ".")
        entry.type, entry.linkname, entry.size = kind, link, size
        entry.mode, entry.mtime = attributes.mode & 0o7777, int(limit_tar_time(attributes.mtime))
        entry.uid, entry.gid = attributes.uid, attributes.gid
        # GNU's format: names of any length and any bytes, without extended headers.
        self._blob.write(entry.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
        while content is not None and (piece := content.read(CHUNK)):
            self._blob.write(piece)
        self._blob.write(bytes(-size % BLOCK))
        self.is_empty = False
