"""The one remover of trees that a guest made, for the whole house.

It goes no deeper than one level at a time, follows no link, and grants itself what the guest took away: a tree of
5,000 levels, unlistable, is gone like any other. Every run without a root of its own ends here, so little is imported.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from warmcell.core.errors import PathTraversal
from warmcell.lifetime.descriptors import is_shortage
from warmcell.workspace.errors import LimitExceeded, WorkspaceError
from warmcell.workspace.root import OPEN_DIRECTORY, TEMP_PREFIX, Root, explained, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.workspace.names import Parts

#: A guest that is still running can put new names where we have just cleaned; it wins only so many times.
_TRIES = 64
_PATIENCE_SECONDS = 0.5


def remove(root: Root, parts: Parts, *, recursive: bool = True, max_entries: int = 1_000_000) -> None:
    """Removes a file, or a directory with all that is in it. Links inside are unlinked, what they name stays."""
    with root.parent(parts) as (dir_fd, name), explained(parts):
        state = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        if not stat.S_ISDIR(state.st_mode) and not stat.S_ISREG(state.st_mode):
            raise PathTraversal(text_of(parts), "is a link or special file; remove it inside the sandbox")
        freed = state.st_blocks * 512
        if stat.S_ISREG(state.st_mode):
            os.unlink(name, dir_fd=dir_fd)
        elif recursive:
            freed = _remove_trees(dir_fd, [name], max_entries)
        else:
            os.rmdir(name, dir_fd=dir_fd)
        root.refund(freed)


def clear(root: Root) -> None:
    """Empties the workspace of everything, however deep and however little of it is readable."""
    _clear(root.fd, root.path)


def remove_directory(path: str) -> None:
    """Removes a directory of our own making, whatever a guest has made of what is in it. A missing one is fine.

    The directory itself is beyond the guest's reach: it cannot have become a link. Nobody comes back for it, so where
    descriptors or memory are short for a moment, that is waited for.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return _remove_directory(path)
        except OSError as error:
            if not is_shortage(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _remove_directory(path: str) -> None:
    try:
        os.chmod(path, 0o700)
        fd = os.open(path, OPEN_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        _clear(fd, path)
    finally:
        os.close(fd)
    os.rmdir(path)


def _clear(fd: int, path: str) -> None:
    os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) | 0o700)
    for _ in range(_TRIES):
        directories, _freed = _unlink_files(fd)
        _remove_trees(fd, directories, None)
        if not os.listdir(fd):
            return
    raise WorkspaceError(path, "could not be emptied: something keeps writing into it")


def _remove_trees(dir_fd: int, waiting: list[str], max_entries: int | None) -> int:
    """Empties directories from the top: each subdirectory is first moved up beside its parent. Returns the space freed.

    That keeps two descriptors open whatever the depth, and never has to find the way back through "..",
    which a guest could move.
    """
    handled = stubborn = freed = 0
    while waiting:
        name = waiting.pop()
        moved, is_gone, size = _empty_one(dir_fd, name)
        waiting += moved if is_gone else [name, *moved]
        handled, stubborn, freed = handled + 1, stubborn + (not is_gone), freed + size
        if max_entries is not None and handled > max_entries:
            raise LimitExceeded(name, "holds too many directories to remove in one call", limit=max_entries)
        if stubborn > _TRIES:
            raise WorkspaceError(name, "could not be removed: something keeps writing into it")
    return freed


def _empty_one(dir_fd: int, name: str) -> tuple[list[str], bool, int]:
    """Empties one directory and removes it: its subdirectories, moved up, whether it is gone, and the space freed."""
    try:
        fd = _open_at_any_cost(dir_fd, name)
    except FileNotFoundError:
        return [], True, 0
    moved = []
    try:
        freed = os.fstat(fd).st_blocks * 512
        directories, size = _unlink_files(fd)
        for child in directories:
            moved.append(TEMP_PREFIX + os.urandom(12).hex())
            _move_at_any_cost(child, fd, moved[-1], dir_fd)
    finally:
        os.close(fd)
    return moved, _rmdir(dir_fd, name), freed + size


def _rmdir(dir_fd: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _unlink_files(fd: int) -> tuple[list[str], int]:
    """Unlinks everything in a directory that is not a directory; the names of those that are, and the space freed."""
    directories, freed = [], 0
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
                continue
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                state = entry.stat(follow_symlinks=False)
                os.unlink(entry.name, dir_fd=fd)
                freed += state.st_blocks * 512 if state.st_nlink == 1 else 0
    return directories, freed


def _open_at_any_cost(dir_fd: int, name: str) -> int:
    try:
        fd = os.open(name, OPEN_DIRECTORY, dir_fd=dir_fd)
    except PermissionError:
        _grant(dir_fd, name)
        fd = os.open(name, OPEN_DIRECTORY, dir_fd=dir_fd)
    try:
        if os.fstat(fd).st_mode & 0o700 != 0o700:
            os.fchmod(fd, 0o700)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _move_at_any_cost(name: str, from_fd: int, new: str, to_fd: int) -> None:
    try:
        os.rename(name, new, src_dir_fd=from_fd, dst_dir_fd=to_fd)
    except PermissionError:
        _grant(from_fd, name)
        os.rename(name, new, src_dir_fd=from_fd, dst_dir_fd=to_fd)


def _grant(dir_fd: int, name: str) -> None:
    """Makes a directory that its guest closed to everyone usable for its owner again, without following a link."""
    if not hasattr(os, "O_PATH"):
        os.chmod(name, 0o700, dir_fd=dir_fd, follow_symlinks=False)
        return
    fd = os.open(name, os.O_PATH | OPEN_DIRECTORY, dir_fd=dir_fd)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)
