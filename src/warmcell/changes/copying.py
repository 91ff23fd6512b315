"""Copies upper directories, with their whiteouts and what the kernel notes on them, for branches."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from warmcell.changes import content
from warmcell.changes.upper import is_whiteout
from warmcell.workspace.root import Root
from warmcell.workspace.walk import TreeEntry, TreeLimits, open_entry, walk

_LIMITS = TreeLimits(entries=2_000_000, path_bytes=1 << 28, seconds=600.0)
_OWN = "user.overlay."
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def copy_upper(source: str, target: str, names: Sequence[str]) -> None:
    """These directories of one layer into those of another, which are empty."""
    for name in names:
        _copy(Root(os.path.join(source, name)), Root(os.path.join(target, name)))


def _copy(source: Root, target: Root) -> None:
    try:
        for entry in walk(source, (), _LIMITS):
            if entry.kind == "closed":
                continue
            with target.parent(entry.parts) as (dir_fd, name):
                _copy_entry(entry, dir_fd, name)
    finally:
        source.close()
        target.close()


def _copy_entry(entry: TreeEntry, dir_fd: int, name: str) -> None:
    if is_whiteout(entry.state):
        os.mknod(name, stat.S_IFCHR, 0, dir_fd=dir_fd)
    elif entry.kind == "directory":
        os.mkdir(name, stat.S_IMODE(entry.state.st_mode) & 0o777 | 0o700, dir_fd=dir_fd)
        _copy_attributes(entry, dir_fd, name)
    elif entry.kind == "symlink":
        os.symlink(os.readlink(entry.name, dir_fd=entry.dir_fd), name, dir_fd=dir_fd)
    elif entry.kind == "file" and (fd := open_entry(entry)) is not None:
        try:
            _copy_file(fd, entry.state, dir_fd, name)
        finally:
            os.close(fd)


def _copy_file(source: int, state: os.stat_result, dir_fd: int, name: str) -> None:
    """Without the note of its origin: its time of birth is no longer that of the kernel's copy."""
    target = os.open(name, _CREATE, 0o600, dir_fd=dir_fd)
    try:
        content.copy(source, target)
        os.fchmod(target, stat.S_IMODE(state.st_mode) & 0o777)
        os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))
    finally:
        os.close(target)


def _copy_attributes(entry: TreeEntry, dir_fd: int, name: str) -> None:
    source, target = f"/proc/self/fd/{entry.dir_fd}/{entry.name}", f"/proc/self/fd/{dir_fd}/{name}"
    for attribute in os.listxattr(source, follow_symlinks=False):
        if attribute.startswith(_OWN):
            with suppress(FileNotFoundError):
                os.setxattr(target, attribute, os.getxattr(source, attribute, follow_symlinks=False))
