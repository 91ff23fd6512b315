"""Removes trees that a guest created, of any depth and with any permissions, without following links.

Imported by every run without its own root file system, so it imports little.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from warmcell.core.errors import PathTraversal
from warmcell.core.light import closing_fd, on_error
from warmcell.lifetime.descriptors import is_shortage
from warmcell.workspace.errors import LimitExceeded, WorkspaceError
from warmcell.workspace.root import (
    DIRECTORY_SPACE,
    OPEN_DIRECTORY,
    Root,
    space_freed,
    temporary_name,
    text_of,
    translate_os_errors,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.workspace.names import Parts

#: A running guest can create new names in a directory that was just emptied; give up after so many retries.
_TRIES = 64
#: How often a removal is repeated, and the pause before. Counted, because one attempt may take long on a busy host.
_REPETITIONS, _PAUSE_SECONDS = 50, 0.01


def remove(root: Root, parts: Parts, *, recursive: bool = True, max_entries: int = 1_000_000) -> None:
    """Remove a file or a directory tree. Links inside are unlinked, not followed."""
    root.check_unprotected(parts)
    with root.parent(parts) as (dir_fd, name), translate_os_errors(parts), root.replacing():
        state = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        if not stat.S_ISDIR(state.st_mode) and not stat.S_ISREG(state.st_mode):
            raise PathTraversal(text_of(parts), "is a link or special file; remove it inside the sandbox")
        freed = space_freed(state)
        if stat.S_ISREG(state.st_mode):
            os.unlink(name, dir_fd=dir_fd)
        elif recursive:
            freed = remove_trees(dir_fd, [name], max_entries)
        else:
            os.rmdir(name, dir_fd=dir_fd)
        root.refund(freed)


def clear(root: Root) -> int:
    """Empty the workspace, including trees of any depth and unreadable directories. Returns the space freed."""
    with root.replacing():
        freed = _clear(root.fd, root.path)
        root.refund(freed)
    return freed


def remove_directory(path: str) -> None:
    """Remove a directory of ours with its content. A missing one is not an error.

    The guest cannot replace the directory itself by a link. Callers do not retry, so this waits for a temporary
    shortage of descriptors or memory to end.
    """
    for _ in range(_REPETITIONS):
        try:
            return _remove_directory(path)
        except OSError as error:
            if not is_shortage(error):
                raise
        time.sleep(_PAUSE_SECONDS)
    _remove_directory(path)


def _remove_directory(path: str) -> None:
    try:
        os.chmod(path, 0o700)
        fd = os.open(path, OPEN_DIRECTORY)
    except FileNotFoundError:
        return
    with closing_fd(fd):
        _clear(fd, path)
    os.rmdir(path)


def _clear(fd: int, path: str) -> int:
    """Empty an open directory; return the space freed."""
    os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) | 0o700)
    freed = 0
    for _ in range(_TRIES):
        directories, size = _unlink_files(fd)
        freed += size + remove_trees(fd, directories)
        if not os.listdir(fd):
            return freed
    raise WorkspaceError(path, "could not be emptied: another process keeps writing into it")


def remove_tree(dir_fd: int, name: str) -> None:
    """Remove a directory. Until it is gone, all that is left of it is below its name, also if this is interrupted."""
    with closing_fd(_open_forcibly(dir_fd, name)) as fd:
        _clear(fd, name)
    os.rmdir(name, dir_fd=dir_fd)


def remove_trees(dir_fd: int, waiting: list[str], max_entries: int | None = None) -> int:
    """Remove directories top down, moving each subdirectory up into `dir_fd` first. Return the space freed.

    This needs two descriptors at any depth and never uses "..", which a guest could move.
    """
    handled = stubborn = freed = 0
    while waiting:
        name = waiting.pop()
        moved, is_gone, size = _empty_one(dir_fd, name)
        waiting += moved if is_gone else [name, *moved]
        handled, stubborn, freed = handled + 1, stubborn + (not is_gone), freed + size
        if max_entries is not None and handled > max_entries:
            raise LimitExceeded(name, "has too many directories to remove in one call", limit=max_entries)
        if stubborn > _TRIES:
            raise WorkspaceError(name, "could not be removed: another process keeps writing into it")
    return freed


def _empty_one(dir_fd: int, name: str) -> tuple[list[str], bool, int]:
    """Empty one directory and remove it. Returns its subdirectories (moved up), whether it is gone, the space freed."""
    try:
        fd = _open_forcibly(dir_fd, name)
    except FileNotFoundError:
        return [], True, 0
    moved = []
    with closing_fd(fd):
        directories, freed = _unlink_files(fd)
        for child in directories:
            moved.append(temporary_name())
            _move_forcibly(child, fd, moved[-1], dir_fd)
    is_gone = _rmdir(dir_fd, name)
    return moved, is_gone, freed + DIRECTORY_SPACE * is_gone


def _rmdir(dir_fd: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _unlink_files(fd: int) -> tuple[list[str], int]:
    """Unlink everything but directories. Returns the names of the directories and the space freed."""
    directories, freed = [], 0
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
                continue
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                state = entry.stat(follow_symlinks=False)
                os.unlink(entry.name, dir_fd=fd)
                freed += space_freed(state)
    return directories, freed


def _open_forcibly(dir_fd: int, name: str) -> int:
    try:
        fd = os.open(name, OPEN_DIRECTORY, dir_fd=dir_fd)
    except PermissionError:
        _grant(dir_fd, name)
        fd = os.open(name, OPEN_DIRECTORY, dir_fd=dir_fd)
    with on_error(lambda: os.close(fd)):
        if os.fstat(fd).st_mode & 0o700 != 0o700:
            os.fchmod(fd, 0o700)
    return fd


def _move_forcibly(name: str, from_fd: int, new: str, to_fd: int) -> None:
    try:
        os.rename(name, new, src_dir_fd=from_fd, dst_dir_fd=to_fd)
    except PermissionError:
        _grant(from_fd, name)
        os.rename(name, new, src_dir_fd=from_fd, dst_dir_fd=to_fd)


def _grant(dir_fd: int, name: str) -> None:
    """Restore the owner's permissions on a directory without following a link."""
    if not hasattr(os, "O_PATH"):
        os.chmod(name, 0o700, dir_fd=dir_fd, follow_symlinks=False)
        return
    with closing_fd(os.open(name, os.O_PATH | OPEN_DIRECTORY, dir_fd=dir_fd)) as fd:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
