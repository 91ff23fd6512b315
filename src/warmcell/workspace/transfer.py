"""Uploads (files, directories, archives) and downloads (a file, or a directory as tar)."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path
from typing import NamedTuple

from warmcell.core.errors import InvalidRequest
from warmcell.core.light import closing_fd
from warmcell.core.timestamps import limit_tar_time
from warmcell.workspace.archive.members import ArchiveLimits
from warmcell.workspace.archive.unpack import Archive, read_archive, unpack
from warmcell.workspace.descent import Descent
from warmcell.workspace.errors import FileMissing, LimitExceeded
from warmcell.workspace.files import MAX_FILE_BYTES, read_file, read_open, replace_file, stat_path, write_file
from warmcell.workspace.names import Parts, split_relative
from warmcell.workspace.root import OPEN_FILE, Root, require_regular, text_of
from warmcell.workspace.walk import TreeEntry, TreeLimits, open_entry, walk


class Uploaded(NamedTuple):
    """What an upload wrote. `skipped` lists links and special files of a host directory, which are not copied."""

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
    if isinstance(source, Path):
        with os.fdopen(_open_host_file(source), "rb") as stream:
            return _unpack(root, base, read_archive(stream, limits))
    return _unpack(root, base, read_archive(source, limits))


def _unpack(root: Root, base: Parts, archive: Archive) -> Uploaded:
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
    try:
        require_regular(fd, (source.name,))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _upload_directory(root: Root, target: Parts, source: Path, limits: ArchiveLimits) -> Uploaded:
    tree = TreeLimits(limits.entries, limits.total_bytes)
    files, total, skipped = 0, 0, []
    with Root(source) as host:
        _check_total(host, tree)
        with Descent(root, create=True) as descent:
            for found in walk(host, (), tree):
                size = _upload_entry(root, descent, (*target, *found.parts), found, tree.total_bytes - total)
                if size is None:
                    skipped.append(text_of(found.parts))
                else:
                    files, total = files + (found.kind == "file"), total + size
    return Uploaded(files, total, tuple(skipped))


def _check_total(host: Root, limits: TreeLimits) -> None:
    """Check the size before the first write."""
    total = sum(found.state.st_size for found in walk(host, (), limits) if found.kind == "file")
    if total > limits.total_bytes:
        raise LimitExceeded(host.path, f"has {total} bytes, more than {limits.total_bytes}", limit=limits.total_bytes)


def _upload_entry(root: Root, descent: Descent, target: Parts, found: TreeEntry, room: int) -> int | None:
    if found.kind == "directory":
        descent.enter(target)
        return 0
    fd = open_entry(found) if found.kind == "file" else None
    if fd is None:
        return None
    with closing_fd(fd):
        data = read_open(fd, found.parts, room)
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
    fd = open_entry(found) if found.kind == "file" else None
    if fd is None:
        return 0
    with closing_fd(fd):
        data = read_open(fd, found.parts, room)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
    return len(data)
