"""Single files and directories of a workspace: read, write, list, stat, mkdir. Blocking, bounded, follows no link."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from warmcell.core.errors import InvalidRequest, PathTraversal
from warmcell.core.timestamps import limit_time
from warmcell.core.types import MIB
from warmcell.lifetime.own_modes import grant_owner
from warmcell.workspace.errors import LimitExceeded, WrongKind
from warmcell.workspace.names import Parts, printable
from warmcell.workspace.root import (
    Root,
    check_parts,
    space_for,
    space_freed,
    temporary_name,
    text_of,
    translate_os_errors,
)
from warmcell.workspace.walk import Descent

MAX_FILE_BYTES = 64 * MIB
MAX_LIST_ENTRIES = 10_000
_LARGEST_LIMIT = (1 << 63) - 1
_CHUNK = MIB
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True, slots=True)
class DirEntry:
    """One name in a directory. Links and special files are neither `is_dir` nor `is_file`."""

    name: str
    is_dir: bool
    is_file: bool
    size: int
    is_symlink: bool = False


@dataclass(frozen=True, slots=True)
class FileStat:
    """A file or directory. A guest sets `modified` freely: seconds since 1970, of the years 1 to 9999."""

    path: str
    is_dir: bool
    is_file: bool
    size: int
    mode: int
    modified: float


def read_file(root: Root, parts: Parts, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The content of a regular file. `LimitExceeded`, before reading, if it is larger than `max_bytes`."""
    with root.file(parts) as fd:
        return read_open(fd, parts, max_bytes)


def read_open(fd: int, parts: Parts, max_bytes: int) -> bytes:
    """The rest of an open regular file. Reads up to one byte past the limit, since a guest may be appending to it."""
    if os.fstat(fd).st_size > max_bytes:
        raise _too_large(parts, os.fstat(fd).st_size, max_bytes)
    chunks, total = [], 0
    with translate_os_errors(parts):
        while chunk := os.read(fd, min(_CHUNK, max_bytes + 1 - total)):
            chunks.append(chunk)
            total += len(chunk)
            if total > max_bytes:
                raise _too_large(parts, total, max_bytes)
    return b"".join(chunks)


def _too_large(parts: Parts, size: int, limit: int) -> LimitExceeded:
    hint = "raise max_bytes, or read part of it inside the sandbox"
    return LimitExceeded(text_of(parts), f"has {size} bytes, more than {limit}", limit=limit, hint=hint)


def write_file(root: Root, parts: Parts, data: bytes, *, parents: bool = True, executable: bool | None = None) -> None:
    """Write the file atomically: readers see the old content or the new. Links are not followed."""
    if not check_parts(parts):
        raise PathTraversal(".", "is the workspace itself")
    with Descent(root, create=parents) as descent:
        replace_file(root, descent.enter(parts[:-1]), parts, data, executable=executable)


def replace_file(root: Root, dir_fd: int, parts: Parts, data: bytes, *, executable: bool | None = None) -> None:
    """Write a temporary file and rename it over the old one, which replaces a link instead of following it.

    `dir_fd` is the directory of the last name.
    """
    root.check_unprotected(parts)
    with translate_os_errors(parts), root.replacing():
        old = _old_file(dir_fd, parts)
        with root.charge(parts, space_for(len(data)), space_freed(old) if old else 0):
            put_file(dir_fd, parts[-1], data, _mode_for(old, executable))


def put_file(dir_fd: int, name: str, data: bytes, mode: int) -> None:
    with temporary_file(dir_fd) as (fd, temporary):
        write_all(fd, data)
        os.fchmod(fd, mode)
        os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


@contextlib.contextmanager
def temporary_file(dir_fd: int) -> Iterator[tuple[int, str]]:
    """An empty file with a random name; removed unless the body renames it."""
    temporary = temporary_name()
    fd = os.open(temporary, _CREATE, 0o600, dir_fd=dir_fd)
    try:
        grant_owner(fd)
        yield fd, temporary
    finally:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=dir_fd)


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _old_file(dir_fd: int, parts: Parts) -> os.stat_result | None:
    """The file that will be replaced, or None.

    This check only gives a clear error. If a link is created afterwards, the rename replaces it.
    """
    try:
        state = os.stat(parts[-1], dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(state.st_mode):
        raise WrongKind(text_of(parts), "is a directory")
    if not stat.S_ISREG(state.st_mode):
        raise PathTraversal(text_of(parts), "is a link or special file, which is never written through")
    return state


def _mode_for(old: os.stat_result | None, executable: bool | None) -> int:
    """The old file's permission bits, or 0644; set-id and sticky bits are dropped."""
    if old is None:
        return 0o755 if executable else 0o644
    mode = stat.S_IMODE(old.st_mode) & 0o777
    return mode if executable is None else mode | 0o111 if executable else mode & ~0o111


def list_dir(root: Root, parts: Parts, max_entries: int = MAX_LIST_ENTRIES) -> list[DirEntry]:
    """The entries of a directory, sorted by name. `LimitExceeded` if there are more than `max_entries`."""
    found: list[DirEntry] = []
    with root.directory(parts) as fd, translate_os_errors(parts), os.scandir(fd) as entries:
        for entry in entries:
            if len(found) == max_entries:
                hint = "raise max_entries, or list a smaller directory"
                reason = f"has more than {max_entries} entries"
                raise LimitExceeded(text_of(parts), reason, limit=max_entries, hint=hint)
            with contextlib.suppress(FileNotFoundError):
                found.append(_describe(entry))
    return sorted(found, key=lambda entry: entry.name)


def _describe(entry: os.DirEntry[str]) -> DirEntry:
    state = entry.stat(follow_symlinks=False)
    is_file = stat.S_ISREG(state.st_mode)
    size = state.st_size if is_file else 0
    return DirEntry(printable(entry.name), stat.S_ISDIR(state.st_mode), is_file, size, stat.S_ISLNK(state.st_mode))


def stat_path(root: Root, parts: Parts) -> FileStat:
    """Stat a file or directory. Links and special files are refused."""
    state = root.lstat(parts)
    if stat.S_ISLNK(state.st_mode):
        raise PathTraversal(text_of(parts), "is a symbolic link; links are never followed")
    is_dir, is_file = stat.S_ISDIR(state.st_mode), stat.S_ISREG(state.st_mode)
    if not is_dir and not is_file:
        raise PathTraversal(text_of(parts), "is neither a file nor a directory")
    size = state.st_size if is_file else 0
    return FileStat(text_of(parts), is_dir, is_file, size, stat.S_IMODE(state.st_mode), limit_time(state.st_mtime))


def make_dir(root: Root, parts: Parts, *, parents: bool = False) -> None:
    """Create a directory; with `parents`, like `mkdir -p`."""
    if not parts:
        raise PathTraversal(".", "is the workspace itself")
    if parents:
        with Descent(root, create=True) as descent:
            descent.enter(parts)
        return
    with root.parent(parts) as (dir_fd, name), translate_os_errors(parts):
        root.make_one(dir_fd, name, parts, may_exist=False)


def check_limit(name: str, value: int) -> int:
    """Check a limit given by a caller. No file has more bytes, and no directory more entries, than the largest one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        # Do not print the value: numbers of thousands of digits cannot be printed.
        raise InvalidRequest("must be a whole number of at least 0", field=name)
    return min(value, _LARGEST_LIMIT)
