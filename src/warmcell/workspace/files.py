"""Single files and directories of a workspace: read, write, list, look, make. Blocking, bounded, follows no link."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from warmcell.core.errors import InvalidRequest, PathTraversal
from warmcell.core.types import MIB
from warmcell.workspace.errors import LimitExceeded, WrongKind
from warmcell.workspace.names import Parts, printable
from warmcell.workspace.paths import Root, explained, text_of

MAX_FILE_BYTES = 64 * MIB
MAX_LIST_ENTRIES = 10_000
#: How files in the making are called. They show in listings while they last: hiding a name would hide a guest's too.
TEMP_PREFIX = ".warmcell-"
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
    """What is at a path. `modified` is in seconds since the epoch and is whatever the guest made it."""

    path: str
    is_dir: bool
    is_file: bool
    size: int
    mode: int
    modified: float


def read_file(root: Root, parts: Parts, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The content of a regular file, refused before a byte is read when it is larger than `max_bytes`."""
    with root.file(parts) as fd:
        return read_open(fd, parts, max_bytes)


def read_open(fd: int, parts: Parts, max_bytes: int) -> bytes:
    """The rest of an open regular file. It is read to one byte past the limit: a guest may be appending to it."""
    if os.fstat(fd).st_size > max_bytes:
        raise _too_large(parts, os.fstat(fd).st_size, max_bytes)
    chunks, total = [], 0
    with explained(parts):
        while chunk := os.read(fd, min(_CHUNK, max_bytes + 1 - total)):
            chunks.append(chunk)
            total += len(chunk)
            if total > max_bytes:
                raise _too_large(parts, total, max_bytes)
    return b"".join(chunks)


def _too_large(parts: Parts, size: int, limit: int) -> LimitExceeded:
    hint = "raise max_bytes, or read a part of it inside the sandbox"
    return LimitExceeded(text_of(parts), f"has {size} bytes, more than {limit}", limit=limit, hint=hint)


def write_file(root: Root, parts: Parts, data: bytes, *, parents: bool = True, executable: bool | None = None) -> None:
    """Puts `data` at the path in one step: readers see the old content or the new, and no link is written through."""
    with root.parent(parts, create=parents) as (dir_fd, name):
        replace_file(dir_fd, name, parts, data, executable=executable)


def replace_file(dir_fd: int, name: str, parts: Parts, data: bytes, *, executable: bool | None = None) -> None:
    """Writes a new file beside the old one and renames it over: a rename replaces a name, whatever hides behind it."""
    mode = _mode_for(dir_fd, name, parts, executable)
    with explained(parts), new_file(dir_fd) as (fd, temporary):
        os.fchmod(fd, mode)
        write_all(fd, data)
        os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


@contextlib.contextmanager
def new_file(dir_fd: int) -> Iterator[tuple[int, str]]:
    """An empty file under a name that nobody can guess; removed again unless the body renames it away."""
    temporary = TEMP_PREFIX + secrets.token_hex(12)
    fd = os.open(temporary, _CREATE, 0o600, dir_fd=dir_fd)
    try:
        yield fd, temporary
    finally:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=dir_fd)


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _mode_for(dir_fd: int, name: str, parts: Parts, executable: bool | None) -> int:
    """The old file's permission bits, or 0644; set-id and sticky bits are never carried over.

    Looking first is only for the refusal to be clear: were a link put here afterwards, the rename would replace it.
    """
    try:
        old = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0o755 if executable else 0o644
    if stat.S_ISDIR(old):
        raise WrongKind(text_of(parts), "is a directory")
    if not stat.S_ISREG(old):
        raise PathTraversal(text_of(parts), "is a link or special file and is not written through")
    mode = stat.S_IMODE(old) & 0o777 | 0o600
    return mode if executable is None else mode | 0o111 if executable else mode & ~0o111


def list_dir(root: Root, parts: Parts, max_entries: int = MAX_LIST_ENTRIES) -> list[DirEntry]:
    """The entries of a directory, sorted by name. More than `max_entries` is an error, not a part of the truth."""
    found: list[DirEntry] = []
    with root.directory(parts) as fd, explained(parts), os.scandir(fd) as entries:
        for entry in entries:
            if len(found) == max_entries:
                hint = "raise max_entries, or list a smaller directory"
                reason = f"has more than {max_entries} entries"
                raise LimitExceeded(text_of(parts), reason, limit=max_entries, hint=hint)
            with contextlib.suppress(FileNotFoundError):
                found.append(_described(entry))
    return sorted(found, key=lambda entry: entry.name)


def _described(entry: os.DirEntry[str]) -> DirEntry:
    state = entry.stat(follow_symlinks=False)
    is_file = stat.S_ISREG(state.st_mode)
    size = state.st_size if is_file else 0
    return DirEntry(printable(entry.name), stat.S_ISDIR(state.st_mode), is_file, size, stat.S_ISLNK(state.st_mode))


def stat_path(root: Root, parts: Parts) -> FileStat:
    """What is at the path. Links and special files are refused, as they are everywhere else."""
    state = root.lstat(parts)
    if stat.S_ISLNK(state.st_mode):
        raise PathTraversal(text_of(parts), "is a symbolic link; links are never followed")
    is_dir, is_file = stat.S_ISDIR(state.st_mode), stat.S_ISREG(state.st_mode)
    if not is_dir and not is_file:
        raise PathTraversal(text_of(parts), "is neither a file nor a directory")
    size = state.st_size if is_file else 0
    return FileStat(text_of(parts), is_dir, is_file, size, stat.S_IMODE(state.st_mode), state.st_mtime)


def make_dir(root: Root, parts: Parts, *, parents: bool = False) -> None:
    """Makes a directory. With `parents`, also what leads to it, and one that is there already is fine."""
    if not parts:
        raise PathTraversal(".", "is the workspace itself")
    if parents:
        return root.make_directories(parts)
    with root.parent(parts) as (dir_fd, name), explained(parts):
        os.mkdir(name, 0o755, dir_fd=dir_fd)


def check_limit(name: str, value: int) -> int:
    """A limit that a caller gave: a whole number, not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(f"must be a whole number of at least 0, not {value!r}", field=name)
    return value
