"""Uploads (files, directories, archives) and downloads (a file, or a directory as tar).

Archives are untrusted: `read_archive` checks the whole archive before anything is written, and returns members with
checked names, and a private file with their content; `unpack` writes them through `Root`. Links, special files, set-id
bits and duplicate names are refused. The readers are our own because those of the standard library support extensions
that would be dangerous here.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from warmcell.core.compressed_members import expand, gunzip
from warmcell.core.decompressors import LZMAError, load_decompressor
from warmcell.core.errors import InvalidRequest, PathTraversal
from warmcell.core.light import closing_fd, on_error
from warmcell.core.timestamps import limit_tar_time
from warmcell.core.types import MIB
from warmcell.workspace.archive.members import ArchiveLimits, Member
from warmcell.workspace.archive.readers import read_tar, read_zip
from warmcell.workspace.errors import ArchiveRejected, FileMissing, LimitExceeded, WrongKind
from warmcell.workspace.files import MAX_FILE_BYTES, read_file, read_open, replace_file, stat_path, write_file
from warmcell.workspace.names import Parts, split_relative
from warmcell.workspace.root import (
    DIRECTORY_SPACE,
    OPEN_FILE,
    Root,
    require_regular,
    space_for,
    space_freed,
    text_of,
    translate_os_errors,
)
from warmcell.workspace.walk import Descent, TreeEntry, TreeLimits, open_entry, walk

_SPOOL_IN_MEMORY = 8 * MIB
_XZ_MEMORY = 128 * MIB
_DAMAGED = (OSError, EOFError, zlib.error, LZMAError, ValueError)


@dataclass(frozen=True, slots=True)
class Archive:
    """A checked archive: its members, and an open file with their content."""

    members: tuple[Member, ...]
    content: IO[bytes]

    def data_of(self, member: Member) -> bytes:
        self.content.seek(member.offset)
        return self.content.read(member.size)


def read_archive(source: bytes | IO[bytes], limits: ArchiveLimits | None = None) -> Archive:
    """Read tar (plain, gzip, bzip2, xz) or zip. Raises `ArchiveRejected`."""
    limits = limits or ArchiveLimits()
    stream = io.BytesIO(source) if isinstance(source, bytes) else source
    size = stream.seek(0, os.SEEK_END)
    if size > limits.largest_input:
        raise ArchiveRejected(f"the archive has {size} bytes, more than {limits.largest_input}")
    stream.seek(0)
    try:
        return _read(stream, size, limits)
    except _DAMAGED as error:
        raise ArchiveRejected(f"the archive is damaged: {error}") from None


def _read(stream: IO[bytes], size: int, limits: ArchiveLimits) -> Archive:
    magic = stream.read(6)
    stream.seek(0)
    spool: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_SPOOL_IN_MEMORY)  # noqa: SIM115  # `Archive` has it
    if magic.startswith(b"PK"):
        return Archive(read_zip(stream, size, spool, limits), spool)
    decompress = _DECOMPRESSORS.get(magic[:2])
    if decompress is None:
        return Archive(read_tar(stream, size, limits), stream)
    total = 0
    for chunk in decompress(iter(partial(stream.read, MIB), b"")):
        total += len(chunk)
        limits.check_expansion(total, size, overhead=True)
        spool.write(chunk)
    return Archive(read_tar(spool, total, limits), spool)


def _xz_decompressor() -> Any:
    """Limits memory: an xz header may require gigabytes."""
    lzma = load_decompressor("lzma")
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)


_DECOMPRESSORS: dict[bytes, Callable[[Iterator[bytes]], Iterator[bytes]]] = {
    b"\x1f\x8b": lambda chunks: gunzip(chunks, is_strict=True),
    b"BZ": lambda chunks: expand(chunks, lambda: load_decompressor("bz2").BZ2Decompressor(), b"BZ", is_strict=False),
    b"\xfd7": lambda chunks: expand(chunks, _xz_decompressor, b"\xfd", is_strict=False),
}


def unpack(root: Root, base: Parts, archive: Archive) -> int:
    """Write the members beneath `base` and return the number of files.

    Conflicts, protected paths and a lack of space are found before the first write.
    """
    added = freed = 0
    with Descent(root) as descent:
        for member in archive.members:
            target = (*base, *member.parts)
            if not member.is_dir:
                root.check_unprotected(target)
            old = _check_target(descent, target, member)
            if old is None or not member.is_dir:
                added += DIRECTORY_SPACE if member.is_dir else space_for(member.size)
                freed += space_freed(old) if old else 0
    root.check_room(base, added, freed)
    files = 0
    with Descent(root, create=True) as descent:
        descent.enter(base)
        for member in archive.members:
            target = (*base, *member.parts)
            if member.is_dir:
                descent.enter(target)
            else:
                fd = descent.enter(target[:-1])
                replace_file(root, fd, target, archive.data_of(member), executable=member.is_executable)
                files += 1
    return files


def _check_target(descent: Descent, target: Parts, member: Member) -> os.stat_result | None:
    """The entry that is there now, or None. Raises if the member cannot replace it."""
    try:
        with translate_os_errors(target):
            state = os.stat(target[-1], dir_fd=descent.enter(target[:-1]), follow_symlinks=False)
    except FileMissing:
        return None
    mode = state.st_mode
    if stat.S_ISDIR(mode) != member.is_dir and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise WrongKind(text_of(target), "exists and is of another type than in the archive")
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise PathTraversal(text_of(target), "is a link or special file, which is never written through")
    return state


class Uploaded(NamedTuple):
    """The result of an upload. `skipped` lists links and special files of a host directory, which are not copied."""

    files: int
    total_bytes: int
    skipped: tuple[str, ...] = ()


def upload_bytes(
    root: Root, target: Parts, data: bytes, limits: ArchiveLimits, *, executable: bool | None = None
) -> Uploaded:
    if len(data) > limits.total_bytes:
        raise LimitExceeded(text_of(target), f"would have {len(data)} bytes", limit=limits.total_bytes)
    write_file(root, target, data, executable=executable)
    return Uploaded(1, len(data))


def upload_archive(root: Root, base: Parts, source: bytes | Path, limits: ArchiveLimits) -> Uploaded:
    """Unpack a tar or zip beneath `base`, all or nothing."""
    with os.fdopen(_open_host_file(source), "rb") if isinstance(source, Path) else io.BytesIO(source) as stream:
        archive = read_archive(stream, limits)
        with archive.content:
            return Uploaded(unpack(root, base, archive), sum(member.size for member in archive.members))


def upload_path(root: Root, target: Parts, source: Path, limits: ArchiveLimits) -> Uploaded:
    """Copy a host file to `target`, or into it if that is a directory; or the content of a host directory."""
    if source.is_dir():
        return _upload_directory(root, target, source, limits)
    if not target or _is_directory(root, target):
        target = (*target, *split_relative(source.name))
    with os.fdopen(_open_host_file(source), "rb") as stream:
        data = read_open(stream.fileno(), (source.name,), limits.total_bytes)
        is_executable = bool(os.fstat(stream.fileno()).st_mode & stat.S_IXUSR)
    write_file(root, target, data, executable=is_executable)
    return Uploaded(1, len(data))


def _is_directory(root: Root, parts: Parts) -> bool:
    try:
        return stat_path(root, parts).is_dir
    except FileMissing:
        return False


def _open_host_file(source: Path) -> int:
    """Open a file named by the caller, not by a guest: links are followed, but a FIFO must not block."""
    try:
        fd = os.open(source, OPEN_FILE & ~os.O_NOFOLLOW)
    except OSError as error:
        raise InvalidRequest(f"cannot read {str(source)!r}: {error.strerror}", field="source") from None
    with on_error(lambda: os.close(fd)):
        require_regular(fd, (source.name,))
    return fd


def _upload_directory(root: Root, target: Parts, source: Path, limits: ArchiveLimits) -> Uploaded:
    tree = TreeLimits(limits.entries, limits.total_bytes)
    files, total, skipped = 0, 0, []
    with Root(source) as host:
        # Before the first write.
        planned = sum(found.state.st_size for found in walk(host, (), tree) if found.kind == "file")
        if planned > tree.total_bytes:
            reason = f"has {planned} bytes, more than {tree.total_bytes}"
            raise LimitExceeded(host.path, reason, limit=tree.total_bytes)
        with Descent(root, create=True) as descent:
            for found in walk(host, (), tree):
                size = _upload_entry(root, descent, (*target, *found.parts), found, tree.total_bytes - total)
                if size is None:
                    skipped.append(text_of(found.parts))
                else:
                    files, total = files + (found.kind == "file"), total + size
    return Uploaded(files, total, tuple(skipped))


def _upload_entry(root: Root, descent: Descent, target: Parts, found: TreeEntry, room: int) -> int | None:
    if found.kind == "directory":
        descent.enter(target)
        return 0
    data = _read_entry(found, room)
    if data is None:
        return None
    is_executable = bool(found.state.st_mode & stat.S_IXUSR)
    replace_file(root, descent.enter(target[:-1]), target, data, executable=is_executable)
    return len(data)


def download(root: Root, parts: Parts, max_bytes: int = MAX_FILE_BYTES, max_entries: int = 10_000) -> bytes:
    """A file's content, or a directory as an uncompressed tar of its files and directories."""
    if parts and not stat.S_ISDIR(root.lstat(parts).st_mode):
        return read_file(root, parts, max_bytes)
    buffer, total = io.BytesIO(), 0
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for found in walk(root, parts, TreeLimits(max_entries)):
            total += _pack(tar, found, found.parts[len(parts) :], max_bytes - total)
    return buffer.getvalue()


def _pack(tar: tarfile.TarFile, found: TreeEntry, name: Parts, room: int) -> int:
    """Add one entry. Links are left out because the program that unpacks the tar may follow them."""
    info = tarfile.TarInfo("/".join(name))
    info.mode, info.mtime = stat.S_IMODE(found.state.st_mode) & 0o777, limit_tar_time(found.state.st_mtime)
    if found.kind == "directory":
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
        return 0
    data = _read_entry(found, room)
    if data is None:
        return 0
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
    return len(data)


def _read_entry(found: TreeEntry, room: int) -> bytes | None:
    """The content of a file; None if it is something else, or cannot be read."""
    fd = open_entry(found) if found.kind == "file" else None
    if fd is None:
        return None
    with closing_fd(fd):
        return read_open(fd, found.parts, room)
