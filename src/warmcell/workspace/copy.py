"""Copies trees between workspaces: files, directories and links as they are; what cannot be copied is named."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from warmcell.core.types import MIB
from warmcell.workspace.descent import Descent
from warmcell.workspace.errors import LimitExceeded
from warmcell.workspace.files import write_all
from warmcell.workspace.names import Parts
from warmcell.workspace.root import Root, explained, text_of
from warmcell.workspace.walk import Found, TreeLimits, open_found, walk

#: The Linux request that shares the blocks of one file with another (btrfs, XFS, bcachefs).
_FICLONE = 0x40049409
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Copied(NamedTuple):
    """What a copy did. `skipped` names entries that are neither file, directory nor link, or could not be read."""

    files: int
    total_bytes: int
    skipped: tuple[str, ...]


def copy_tree(source: Root, target: Root, start: Parts = (), limits: TreeLimits | None = None) -> Copied:
    """Copies what is beneath `start` of one root into another, which should be empty. Sizes are capped on the way."""
    limits = limits or TreeLimits()
    files, total, skipped = 0, 0, []
    with Descent(target, makes=True) as descent:
        for found in walk(source, start, limits):
            with explained(found.parts):
                size = _copy_entry(found, descent, found.parts[len(start) :], limits.total_bytes - total)
            if size is None:
                skipped.append(text_of(found.parts))
            else:
                files, total = files + (found.kind == "file"), total + size
    return Copied(files, total, tuple(skipped))


def _copy_entry(found: Found, descent: Descent, parts: Parts, room: int) -> int | None:
    """Copies one entry; returns its size in bytes, or None for what is not copied."""
    if found.kind == "directory":
        descent.enter(parts)
    elif found.kind == "file":
        return _copy_file(found, descent, parts, room)
    elif found.kind == "symlink":
        return _copy_link(found, descent, parts)
    else:
        return None
    return 0


def _copy_link(found: Found, descent: Descent, parts: Parts) -> int | None:
    """Makes the same link; it is inert for the host, which follows none, and means to the guest what it meant."""
    try:
        points_at = os.readlink(found.name, dir_fd=found.dir_fd)
    except OSError:
        return None
    os.symlink(points_at, parts[-1], dir_fd=descent.enter(parts[:-1]))
    return 0


def _copy_file(found: Found, descent: Descent, parts: Parts, room: int) -> int | None:
    source_fd = open_found(found)
    if source_fd is None:
        return None
    try:
        size = os.fstat(source_fd).st_size
        if size > room:
            raise _too_much(found.parts, size, room)
        return _copy_content(source_fd, descent.enter(parts[:-1]), parts[-1], found.parts, room)
    finally:
        os.close(source_fd)


def _copy_content(source_fd: int, dir_fd: int, name: str, parts: Parts, room: int) -> int:
    state = os.fstat(source_fd)
    target_fd = os.open(name, _CREATE, 0o600, dir_fd=dir_fd)
    try:
        if _cloned(source_fd, target_fd):
            size = os.fstat(target_fd).st_size
        else:
            size = _pour(source_fd, target_fd, parts, room)
        os.fchmod(target_fd, stat.S_IMODE(state.st_mode) & 0o777)
        os.utime(target_fd, ns=(state.st_atime_ns, state.st_mtime_ns))
    finally:
        os.close(target_fd)
    return size


def _cloned(source_fd: int, target_fd: int) -> bool:
    try:
        import fcntl

        fcntl.ioctl(target_fd, _FICLONE, source_fd)
    except (ImportError, OSError):
        return False
    return True


def _pour(source_fd: int, target_fd: int, parts: Parts, room: int) -> int:
    total = 0
    while chunk := os.read(source_fd, MIB):
        total += len(chunk)
        if total > room:
            raise _too_much(parts, total, room)
        write_all(target_fd, chunk)
    return total


def _too_much(parts: Parts, size: int, room: int) -> LimitExceeded:
    return LimitExceeded(text_of(parts), f"has {size} bytes; only {room} may still be copied", limit=room)
