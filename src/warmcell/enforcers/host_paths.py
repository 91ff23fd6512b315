"""Resolves the paths that a caller names, and checks whether a guest could have changed where they lead.

A guest leaves links behind in directories that it may write. A path into such a directory, given to the next run, would
show that run whatever the link names: the caller meant `stage1/out`, the guest `~/.ssh`.
"""

from __future__ import annotations

import os
import stat

from warmcell.core.records import dataclass

_SYSTEM = ("usr", "etc", "opt", "var", "run", "bin", "sbin", "lib", "lib32", "lib64", "nix", "snap")
_MOST_LINKS = 40
#: Directories that guests of this program may write, by identity. Kept for the life of the program, because what guests
#: left there stays too. A removed one is replaced by whatever takes its path.
_given_to_guests: set[tuple[str, int, int]] = set()


def note_writable(path: str) -> None:
    """Records a directory that a guest may write."""
    state = os.stat(path)
    _given_to_guests.add((path, state.st_dev, state.st_ino))


def forget_writable(path: str) -> None:
    """Call it before a directory that was noted is removed: programs make millions of sandboxes."""
    try:
        state = os.stat(path)
    except OSError:
        return
    _given_to_guests.discard((path, state.st_dev, state.st_ino))


@dataclass(frozen=True, slots=True)
class HostPath:
    """A path without links, and the first link on the way that lies in a directory which guests may write, or
    (`foreign_link`) in any directory that is not the system's.
    """

    real: str
    guest_link: str | None = None
    foreign_link: str | None = None

    def complaint(self, link: str) -> str:
        return f"passes through the link {link!r}, which a guest may have put there"

    @property
    def remedy(self) -> str:
        return f"if it is yours, name what it leads to: {self.real!r}"


def follow(path: str | os.PathLike[str]) -> HostPath:
    """Resolves every link. Missing parts stay as they are."""
    waiting = os.path.abspath(path).split("/")[::-1]
    here, links, guests, foreign = "/", 0, None, None
    while waiting and links <= _MOST_LINKS:
        name = waiting.pop()
        if name in ("", "."):
            continue
        step = os.path.dirname(here) if name == ".." else os.path.join(here, name)
        points_at = _link(step)
        if points_at is None:
            here = step
            continue
        links += 1
        if guests is None and _is_given_to_guests(here):
            guests = step
        if foreign is None and not _is_systems(here):
            foreign = step
        here = "/" if points_at.startswith("/") else here
        waiting += points_at.split("/")[::-1]
    return HostPath(here, guests, foreign or guests)


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _is_given_to_guests(directory: str) -> bool:
    while directory != "/":
        try:
            state = os.stat(directory, follow_symlinks=False)
        except OSError:
            return False
        if (directory, state.st_dev, state.st_ino) in _given_to_guests:
            return True
        directory = os.path.dirname(directory)
    return False


def _is_systems(directory: str) -> bool:
    """Whether only the system can have made its content: it belongs to root, and only root may write.

    Root's guests write as root, so for root the directory must also lie in the system's trees.
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
