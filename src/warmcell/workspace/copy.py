"""Copies trees between workspaces. Files keep their holes; entries that cannot be copied are reported."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from warmcell.core.errors import PathTraversal
from warmcell.core.light import closing_fd, suppress
from warmcell.core.types import MIB
from warmcell.workspace.errors import LimitExceeded, WorkspaceError
from warmcell.workspace.files import write_all
from warmcell.workspace.names import Parts
from warmcell.workspace.root import Root, space_for, text_of, translate_os_errors
from warmcell.workspace.walk import Descent, TreeEntry, TreeLimits, open_entry, walk

#: The Linux ioctl that makes one file share the blocks of another (btrfs, XFS, bcachefs).
_FICLONE = 0x40049409
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class CopyReport(NamedTuple):
    """`total_bytes` counts data, not holes. `skipped` lists special files and files that could not be read."""

    files: int
    total_bytes: int
    skipped: tuple[str, ...]


def copy_tree(
    source: Root,
    target: Root,
    limits: TreeLimits | None = None,
    *,
    is_shared: Callable[[str], bool] = lambda name: False,
) -> CopyReport:
    """Copy everything in `source` into `target`, which should be empty, and charge it to the target's quota.

    Files for whose name `is_shared` is true become hard links where the two are on one file system. Directories keep
    their modes, except that their owner can always use them.
    """
    limits = limits or TreeLimits()
    files, total, skipped = 0, 0, []
    modes: dict[Parts, int] = {}
    with Descent(target, create=True) as descent:
        for found in walk(source, (), limits):
            if found.kind == "directory":
                modes[found.parts] = stat.S_IMODE(found.state.st_mode) & 0o777 | 0o700
            with translate_os_errors(found.parts):
                if found.kind == "file" and is_shared(found.name) and _link_file(found, descent):
                    size: int | None = 0
                else:
                    size = _copy_entry(found, target, descent, found.parts, limits.total_bytes - total)
            if size is None:
                skipped.append(text_of(found.parts))
            else:
                files, total = files + (found.kind == "file"), total + size
        for parts in reversed(modes):
            with suppress(WorkspaceError, PathTraversal), translate_os_errors(parts):  # a guest may have removed it
                os.fchmod(descent.enter(parts), modes[parts])
    return CopyReport(files, total, tuple(skipped))


def _copy_entry(found: TreeEntry, target: Root, descent: Descent, parts: Parts, room: int) -> int | None:
    """Copy one entry; return the bytes of data copied, or None if it is skipped."""
    if found.kind == "directory":
        descent.enter(parts)
    elif found.kind == "file":
        return _copy_file(found, target, descent, parts, room)
    elif found.kind == "symlink":
        return _copy_link(found, descent, parts)
    else:
        return None
    return 0


def _link_file(found: TreeEntry, descent: Descent) -> bool:
    """Create a hard link. False on another file system, or if the file has too many links."""
    above = descent.enter(found.parts[:-1])
    try:
        os.link(found.name, found.name, src_dir_fd=found.dir_fd, dst_dir_fd=above, follow_symlinks=False)
    except OSError:
        return False
    return True


def _copy_link(found: TreeEntry, descent: Descent, parts: Parts) -> int | None:
    """Create the same link. The host never follows links, so any target is safe."""
    try:
        destination = os.readlink(found.name, dir_fd=found.dir_fd)
    except OSError:
        return None
    os.symlink(destination, parts[-1], dir_fd=descent.enter(parts[:-1]))
    return 0


def _copy_file(found: TreeEntry, target: Root, descent: Descent, parts: Parts, room: int) -> int | None:
    source_fd = open_entry(found)
    if source_fd is None:
        return None
    with closing_fd(source_fd):
        # Read once: a guest that keeps writing to the file cannot make the copy larger than what is charged.
        ranges = data_ranges(source_fd, found.parts, room)
        size = sum(end - start for start, end in ranges)
        with target.charge(found.parts, space_for(size)):
            _copy_content(source_fd, descent.enter(parts[:-1]), parts[-1], ranges)
        return size


def data_ranges(fd: int, parts: Parts, room: int) -> list[tuple[int, int]]:
    """The parts of a file that are not holes; `LimitExceeded` if they have more than `room` bytes."""
    size, end, total = os.fstat(fd).st_size, 0, 0
    ranges: list[tuple[int, int]] = []
    while end < size:
        start, end = _next_range(fd, end, size)
        total += end - start
        if total > room:
            raise LimitExceeded(text_of(parts), f"takes the copy over its limit by {total - room} bytes", limit=room)
        ranges.append((start, end))
    return ranges


def _next_range(fd: int, offset: int, size: int) -> tuple[int, int]:
    if not hasattr(os, "SEEK_DATA"):
        return offset, size
    try:
        start = os.lseek(fd, offset, os.SEEK_DATA)
        return start, min(os.lseek(fd, start, os.SEEK_HOLE), size)
    except OSError as error:
        if error.errno == errno.ENXIO:  # no data after the offset
            return size, size
        raise


def _copy_content(source_fd: int, dir_fd: int, name: str, ranges: list[tuple[int, int]]) -> None:
    state = os.fstat(source_fd)
    with closing_fd(os.open(name, _CREATE, 0o600, dir_fd=dir_fd)) as target_fd:
        if not _clone(source_fd, target_fd):
            copy_ranges(source_fd, target_fd, ranges)
            os.ftruncate(target_fd, state.st_size)
        os.fchmod(target_fd, stat.S_IMODE(state.st_mode) & 0o777)
        os.utime(target_fd, ns=(state.st_atime_ns, state.st_mtime_ns))


def _clone(source_fd: int, target_fd: int) -> bool:
    try:
        import fcntl

        fcntl.ioctl(target_fd, _FICLONE, source_fd)
    except (ImportError, OSError):
        return False
    return True


def copy_ranges(source_fd: int, target_fd: int, ranges: list[tuple[int, int]]) -> None:
    for start, end in ranges:
        os.lseek(target_fd, start, os.SEEK_SET)
        while start < end and (chunk := os.pread(source_fd, min(end - start, MIB), start)):
            write_all(target_fd, chunk)
            start += len(chunk)
