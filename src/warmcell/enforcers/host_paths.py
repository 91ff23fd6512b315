"""Resolves a caller's paths and checks whether a guest could have changed where they lead.

A guest can leave links in its writable directories. If a later run is given a path through such a link, it sees the
link's target: `stage1/out`, say, is a link to `~/.ssh`.
"""

from __future__ import annotations

import os
import stat

from warmcell.core.records import dataclass

_SYSTEM = ("usr", "etc", "opt", "var", "run", "bin", "sbin", "lib", "lib32", "lib64", "nix", "snap")
_MOST_LINKS = 40
#: Directories that guests of this program may write to: path, device, inode. Kept after the guests have ended, because
#: their files stay.
_guest_writable: set[tuple[str, int, int]] = set()


def note_writable(path: str) -> None:
    """Records a directory that a guest may write to."""
    state = os.stat(path)
    _guest_writable.add((path, state.st_dev, state.st_ino))


def forget_writable(path: str) -> None:
    """Call it before such a directory is removed: programs make millions of sandboxes."""
    try:
        state = os.stat(path)
    except OSError:
        return
    _guest_writable.discard((path, state.st_dev, state.st_ino))


@dataclass(frozen=True, slots=True)
class HostPath:
    """A resolved path, and which links it passes through."""

    real: str
    #: The first link in a directory that guests may write to.
    guest_link: str | None = None
    #: The first link in a directory that does not belong to the system.
    foreign_link: str | None = None

    def describe_link(self, link: str) -> str:
        return f"passes through the link {link!r}, which a guest may have put there"

    @property
    def remedy(self) -> str:
        return f"if it is yours, name its target: {self.real!r}"


def follow(path: str | os.PathLike[str]) -> HostPath:
    """Resolves all links. Missing components are kept."""
    remaining = os.path.abspath(path).split("/")[::-1]
    here, links, guest_link, foreign_link = "/", 0, None, None
    while remaining and links <= _MOST_LINKS:
        name = remaining.pop()
        if name in ("", "."):
            continue
        step = os.path.dirname(here) if name == ".." else os.path.join(here, name)
        target = _readlink(step)
        if target is None:
            here = step
            continue
        links += 1
        if guest_link is None and _is_guest_writable(here):
            guest_link = step
        if foreign_link is None and not _is_system_directory(here):
            foreign_link = step
        here = "/" if target.startswith("/") else here
        remaining += target.split("/")[::-1]
    return HostPath(here, guest_link, foreign_link or guest_link)


def _readlink(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _is_guest_writable(directory: str) -> bool:
    while directory != "/":
        try:
            state = os.stat(directory, follow_symlinks=False)
        except OSError:
            return False
        if (directory, state.st_dev, state.st_ino) in _guest_writable:
            return True
        directory = os.path.dirname(directory)
    return False


def _is_system_directory(directory: str) -> bool:
    """Whether only the system can have created its content: root owns it, and only root may write to it.

    Root's guests write as root, so for root the directory must also be in one of the system's trees.
    """
    try:
        state = os.stat(directory, follow_symlinks=False)
    except OSError:
        return False
    if state.st_uid != 0 or stat.S_IMODE(state.st_mode) & 0o022:
        return False
    if os.geteuid() != 0:
        return True
    return directory == "/" or directory.split("/")[1] in _SYSTEM
