"""Root: a directory held by descriptor, and opens beneath it that no link can lead out of.

A guest can plant and swap links at any moment, so checking a path first and opening it later proves nothing. Here the
kernel refuses every symbolic link while it opens (`openat2`), or, where it lacks that call, each component is opened
on its own with O_NOFOLLOW from the descriptor of the one before. Links are refused also where they would stay inside:
one rule, nothing to race against. What was opened is then looked at by descriptor; only regular files and directories
pass, and O_NONBLOCK keeps a FIFO from ever holding us up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Literal

from warmcell.core.errors import BackendUnavailable, InvalidRequest, PathTraversal, SandboxDestroyed, SandboxError
from warmcell.workspace import openat2
from warmcell.workspace.errors import AlreadyExists, FileMissing, WorkspaceError, WrongKind
from warmcell.workspace.names import Parts, printable

Resolver = Literal["auto", "openat2", "walk"]

_O_PATH = getattr(os, "O_PATH", os.O_RDONLY)
_DIRECTORY = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
OPEN_DIRECTORY = os.O_RDONLY | _DIRECTORY
OPEN_FILE = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
_NEEDED = (os.open, os.stat, os.mkdir, os.unlink, os.rmdir, os.rename)


class Root:
    """The one place from which the host reaches into a workspace. Methods take names, not text: see `names.py`.

    Descriptors that a method returns belong to the caller. `close` may be called twice; after it every method raises
    `SandboxDestroyed`, so that a reused descriptor number can never be mistaken for the workspace.
    """

    def __init__(self, path: str | os.PathLike[str], *, resolver: Resolver = "auto") -> None:
        self._fd = -1
        if not all(call in os.supports_dir_fd for call in _NEEDED):
            raise BackendUnavailable("this system cannot open files relative to a directory; workspaces need that")
        self.path = os.path.realpath(path)
        self._open = _opener(resolver)
        try:
            self._fd = os.open(self.path, OPEN_DIRECTORY)
        except OSError as error:
            raise InvalidRequest(f"{self.path!r} is not a directory: {error.strerror}", field="work_dir") from None

    @property
    def fd(self) -> int:
        if self._fd < 0:
            raise SandboxDestroyed("the workspace was closed")
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    @contextlib.contextmanager
    def directory(self, parts: Parts) -> Iterator[int]:
        """A directory beneath the root, open for listing."""
        with explained(parts):
            fd = self._open(self.fd, checked(parts), OPEN_DIRECTORY)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def file(self, parts: Parts) -> Iterator[int]:
        """A regular file beneath the root, open for reading."""
        with explained(parts):
            fd = self._open(self.fd, checked(parts), OPEN_FILE)
        try:
            require_regular(fd, parts)
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def parent(self, parts: Parts, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """The directory that holds the last name, and that name. With `create`, missing directories are made."""
        if not parts:
            raise PathTraversal(".", "is the workspace itself")
        checked(parts)
        if create:
            self.make_directories(parts[:-1])
        with self.directory(parts[:-1]) as fd:
            yield fd, parts[-1]

    def make_directories(self, parts: Parts) -> None:
        """Makes what is missing of a directory path; a link anywhere on it is refused, never followed."""
        fd = os.dup(self.fd)
        try:
            for depth, name in enumerate(checked(parts), start=1):
                with explained(parts[:depth]):
                    fd = _step_down(fd, name)
        finally:
            os.close(fd)

    def lstat(self, parts: Parts) -> os.stat_result:
        """What is at the path itself; a link is described, not followed."""
        if not parts:
            return os.fstat(self.fd)
        with self.parent(parts) as (fd, name), explained(parts):
            return os.stat(name, dir_fd=fd, follow_symlinks=False)


def _step_down(fd: int, name: str) -> int:
    """Replaces an open directory by its child, made if it is missing. Takes over `fd` only when it succeeds."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=fd)
    child = _open_one(fd, name, OPEN_DIRECTORY)
    os.close(fd)
    return child


def _opener(resolver: Resolver) -> Callable[[int, Parts, int], int]:
    if resolver == "openat2" or (resolver == "auto" and openat2.is_available()):
        return _open_by_openat2
    return _open_by_walk


def _open_by_openat2(root: int, parts: Parts, flags: int) -> int:
    # The call refuses links by itself; O_NOFOLLOW would only have it answer ENOTDIR, or hand out the link with O_PATH.
    return openat2.open_beneath(root, "/".join(parts) or ".", flags & ~os.O_NOFOLLOW)


def _open_by_walk(root: int, parts: Parts, flags: int) -> int:
    if not parts:
        return os.open(".", flags, dir_fd=root)
    here = os.dup(root)
    try:
        for name in parts[:-1]:
            child = _open_one(here, name, _O_PATH | _DIRECTORY)
            os.close(here)
            here = child
        return _open_one(here, parts[-1], flags)
    finally:
        os.close(here)


def _open_one(dir_fd: int, name: str, flags: int) -> int:
    """Opens one name. A link in a directory's place answers ENOTDIR on some systems: it is named for what it is."""
    try:
        return os.open(name, flags, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ENOTDIR and _is_link(dir_fd, name):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None
        raise


def _is_link(dir_fd: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    except OSError:
        return False


def require_regular(fd: int, parts: Parts) -> os.stat_result:
    """The state of an open file, or a refusal when it is anything but a regular file."""
    state = os.fstat(fd)
    if stat.S_ISDIR(state.st_mode):
        raise WrongKind(text_of(parts), "is a directory")
    if not stat.S_ISREG(state.st_mode):
        raise PathTraversal(text_of(parts), "is neither a file nor a directory")
    return state


def checked(parts: Parts) -> Parts:
    """The second lock: `names.py` lets no such name through, and were it to, the way would still end here."""
    for name in parts:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise PathTraversal(text_of(parts), "is not made of plain names")
    return parts


def text_of(parts: Parts) -> str:
    """The path as a caller would write it."""
    return printable("/".join(parts)) or "."


@contextlib.contextmanager
def explained(parts: Parts) -> Iterator[None]:
    """Turns what the system says about a path into the typed error that says it to the caller."""
    try:
        yield
    except OSError as error:
        if isinstance(error, SandboxError):
            raise
        raise _explanation(error, text_of(parts)) from None


def _explanation(error: OSError, path: str) -> SandboxError:
    match error.errno:
        case errno.ENOENT:
            return FileMissing(path)
        case errno.EEXIST:
            return AlreadyExists(path)
        case errno.ELOOP | errno.EXDEV:
            return PathTraversal(path, "passes through a symbolic link; links are never followed")
        case errno.ENOTDIR:
            return WrongKind(path, "is not a directory, or passes through a file")
        case errno.EISDIR:
            return WrongKind(path, "is a directory")
        case errno.ENXIO | errno.ENODEV:
            return PathTraversal(path, "is neither a file nor a directory")
        case errno.ENAMETOOLONG:
            return PathTraversal(path, "is too long for this file system")
        case _:
            return WorkspaceError(path, f"could not be used: {error.strerror or error}")
