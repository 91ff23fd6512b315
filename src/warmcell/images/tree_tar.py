"""Writes a directory as a layer: sorted and owned by root. The same tree gives the same bytes."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import closing
from math import inf
from typing import Protocol

from warmcell.core.errors import InvalidRequest
from warmcell.core.timestamps import limit_tar_time
from warmcell.images.limits import Budget
from warmcell.workspace.root import Root
from warmcell.workspace.walk import TreeLimits, walk

#: The caller's budget counts entries and bytes; only the length of a path is limited here.
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
    """Every entry, parents first, each with its directory's descriptor. Links are not followed."""
    yield "", os.stat(directory), -1
    with closing(Root(directory)) as root:
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
            archive.addfile(entry, Exactly(file, entry.size))
    except OSError as error:
        raise _unreadable(entry.name, error) from None


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Exactly(io.RawIOBase):
    """A file that somebody may be writing to: exactly `size` bytes of it, then zeros."""

    def __init__(self, file: Readable, size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        self._left -= wanted
        return self._file.read(wanted).ljust(wanted, b"\0")


def _unreadable(path: str, error: OSError) -> InvalidRequest:
    hint = "import a tar file that its owner wrote, or change the permissions"
    return InvalidRequest(f"cannot read {path!r}: {(error.strerror or '').lower()}", field="path", hint=hint)
