"""Creates directories and files that their owner can use, whatever the umask of the host program.

All threads share the umask, so we never change it.
"""

from __future__ import annotations

import errno
import os
import stat

from warmcell.core.light import closing_fd

_OWNER = 0o700


def make_directory(path: str, mode: int = 0o700, *, dir_fd: int | None = None) -> None:
    """`os.mkdir`, with the owner's permissions in `mode` even if the umask removes them."""
    os.mkdir(path, mode, dir_fd=dir_fd)
    made = os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode
    if made & _OWNER != mode & _OWNER:
        change_mode(path, made & 0o777 | mode & _OWNER, dir_fd=dir_fd)


def change_mode(path: str, mode: int, *, dir_fd: int | None = None) -> None:
    """`os.chmod` that follows no link: a guest may put one in place of the file at any moment."""
    if not hasattr(os, "O_PATH"):
        os.chmod(path, mode, dir_fd=dir_fd, follow_symlinks=False)
        return
    with closing_fd(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)) as descriptor:
        if stat.S_ISLNK(os.fstat(descriptor).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        os.chmod(f"/proc/self/fd/{descriptor}", mode)


def make_directories(path: str, mode: int = 0o700) -> None:
    """The same for `path` and its missing parents. Existing directories are not changed."""
    above = os.path.dirname(path)
    if above and not os.path.isdir(above):
        make_directories(above, mode)
    try:
        make_directory(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def grant_owner(descriptor: int) -> None:
    """Makes a new file readable and writable for its owner even if the umask removed that."""
    made = os.fstat(descriptor).st_mode
    if made & _OWNER != 0o600:
        os.fchmod(descriptor, made & 0o777 | 0o600)


def is_own_directory(path: str) -> bool:
    """Whether it is a directory of this user, not a link, that no other user can write to."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
