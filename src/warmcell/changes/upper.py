"""Reads and copies the upper directory of an overlay, which has only what the guest wrote and removed.

A whiteout, a character device 0/0 that guests cannot create, marks a removed name of the lower directory. An opaque
directory hides the content of the lower one. Redirects are off, so a renamed directory is a copy and a whiteout.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from warmcell.changes import content
from warmcell.changes.content import birth_time
from warmcell.core.light import closing_fd
from warmcell.lifetime.own_modes import change_mode, grant_owner
from warmcell.workspace.copy import CopyReport, copy_tree
from warmcell.workspace.names import Parts
from warmcell.workspace.root import Root
from warmcell.workspace.walk import TreeEntry, TreeLimits, open_entry, walk

#: "deleted": a whiteout.
FoundKind = Literal["file", "symlink", "directory", "other", "closed", "deleted"]
OPAQUE, _ORIGIN = "user.overlay.opaque", "user.overlay.origin"
LIMITS = TreeLimits(entries=2_000_000, path_bytes=1 << 28, seconds=600.0)


@dataclass(frozen=True, slots=True)
class Found:
    """One entry. `dir_fd` is open until the next one is read. `copied_ns`: when the kernel copied it up, else 0."""

    parts: Parts
    kind: FoundKind
    state: os.stat_result
    dir_fd: int
    is_opaque: bool = False
    copied_ns: int = 0

    @property
    def name(self) -> str:
        return self.parts[-1]


class UpperDirectory:
    """The upper directory, kept open. Guests cannot replace it: they see only the overlay."""

    def __init__(self, path: str) -> None:
        self.root = Root(path)

    def entries(self) -> Iterator[Found]:
        for entry in walk(self.root, (), LIMITS):
            yield _describe(entry)

    def close(self) -> None:
        self.root.close()


def is_whiteout(state: os.stat_result) -> bool:
    return stat.S_ISCHR(state.st_mode) and state.st_rdev == 0


def _describe(entry: TreeEntry) -> Found:
    if is_whiteout(entry.state):
        return Found(entry.parts, "deleted", entry.state, entry.dir_fd)
    is_opaque, copied = False, 0
    if entry.kind == "directory":
        is_opaque = _attribute(entry, OPAQUE) == b"y"
    elif entry.kind == "file" and _attribute(entry, _ORIGIN):
        copied = birth_time(entry.dir_fd, entry.name)
    return Found(entry.parts, entry.kind, entry.state, entry.dir_fd, is_opaque, copied)


def _attribute(entry: TreeEntry, name: str) -> bytes:
    """Read an attribute through /proc/self/fd: older kernels have no getxattrat."""
    try:
        return os.getxattr(f"/proc/self/fd/{entry.dir_fd}/{entry.name}", name, follow_symlinks=False)
    except OSError:  # it has none, or permissions forbid reading it
        return b""


_OWN = "user.overlay."
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def copy_upper(source: str, target: str, names: Sequence[str]) -> None:
    """Copy these directories of one layer into the empty ones of another."""
    for name in names:
        with Root(os.path.join(source, name)) as upper, Root(os.path.join(target, name)) as copied:
            for entry in walk(upper, (), LIMITS):
                if entry.kind != "closed":
                    with copied.parent(entry.parts) as (dir_fd, own):
                        _copy_entry(entry, dir_fd, own)


def _copy_entry(entry: TreeEntry, dir_fd: int, name: str) -> None:
    if is_whiteout(entry.state):
        os.mknod(name, stat.S_IFCHR, 0, dir_fd=dir_fd)
    elif entry.kind == "directory":
        os.mkdir(name, 0o700, dir_fd=dir_fd)
        change_mode(name, stat.S_IMODE(entry.state.st_mode) & 0o777 | 0o700, dir_fd=dir_fd)  # whatever the umask
        _copy_attributes(entry, dir_fd, name)
    elif entry.kind == "symlink":
        os.symlink(os.readlink(entry.name, dir_fd=entry.dir_fd), name, dir_fd=dir_fd)
    elif entry.kind == "file" and (fd := open_entry(entry)) is not None:
        with closing_fd(fd):
            _copy_file(fd, entry.state, dir_fd, name)


def _copy_file(source: int, state: os.stat_result, dir_fd: int, name: str) -> None:
    """Copy without the attribute of its origin: the creation time is no longer that of the kernel's copy."""
    with closing_fd(os.open(name, _CREATE, 0o600, dir_fd=dir_fd)) as target:
        content.copy(source, target)
        os.fchmod(target, stat.S_IMODE(state.st_mode) & 0o777)
        os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))


def _copy_attributes(entry: TreeEntry, dir_fd: int, name: str) -> None:
    source, target = f"/proc/self/fd/{entry.dir_fd}/{entry.name}", f"/proc/self/fd/{dir_fd}/{name}"
    for attribute in os.listxattr(source, follow_symlinks=False):
        if attribute.startswith(_OWN):
            with suppress(FileNotFoundError):
                os.setxattr(target, attribute, os.getxattr(source, attribute, follow_symlinks=False))


class CopiedTree(UpperDirectory):
    """A private copy of the directory for guests. `entries` lists only what changed, like an upper directory."""

    def __init__(self, path: str, lower: Root | None, names: str) -> None:
        """Copy `lower`, within the usual limits on trees, and write its names to the file `names`.

        With `lower=None` the copy and the names exist already, and every file may have changed.
        """
        super().__init__(path)
        self.report = CopyReport(0, 0, ())
        self._before: dict[Parts, tuple[int, ...]] = {}
        if lower is None:
            with open(names, "rb") as file:
                paths = file.read().split(b"\0")[:-1]
            self._before = {tuple(os.fsdecode(path).split("/")): () for path in paths}
            return
        self.report = copy_tree(lower, self.root)
        self._before = {entry.parts: _facts(entry.state) for entry in walk(self.root, (), LIMITS)}
        with open(names, "wb") as file:
            grant_owner(file.fileno())
            file.writelines(os.fsencode("/".join(parts)) + b"\0" for parts in self._before)

    def entries(self) -> Iterator[Found]:
        missing = dict(self._before)
        directories: set[Parts] = {()}
        for entry in walk(self.root, (), LIMITS):
            if entry.kind == "directory":
                directories.add(entry.parts)
            if missing.pop(entry.parts, None) != _facts(entry.state):
                yield Found(entry.parts, entry.kind, entry.state, entry.dir_fd)
        # Entries of a removed directory are not listed.
        state = os.fstat(self.root.fd)
        yield from (Found(parts, "deleted", state, -1) for parts in missing if parts[:-1] in directories)


def _facts(state: os.stat_result) -> tuple[int, ...]:
    """Guests cannot set a ctime. A directory's changes with its entries, so it does not count."""
    if stat.S_ISDIR(state.st_mode):
        return state.st_ino, state.st_mode
    return state.st_ino, state.st_ctime_ns
