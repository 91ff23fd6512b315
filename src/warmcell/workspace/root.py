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

from warmcell.core.errors import BackendUnavailable, InvalidRequest, PathTraversal, SandboxDestroyed, SandboxError
from warmcell.lifetime.descriptors import host_failure, is_exhaustion
from warmcell.workspace import openat2
from warmcell.workspace.errors import AccessDenied, AlreadyExists, FileMissing, WorkspaceError, WrongKind
from warmcell.workspace.names import Parts, printable
from warmcell.workspace.quota import DIRECTORY_SPACE, Quota

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

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
#: How files and directories in the making are called. They show in listings while they last: hiding a name would hide
#: a guest's too.
TEMP_PREFIX = ".warmcell-"
_NEEDED = (os.open, os.stat, os.mkdir, os.unlink, os.rmdir, os.rename)


class Root:
    """The one place from which the host reaches into a workspace. Methods take names, not text: see `names.py`.

    What is written through it is charged to `quota`, where there is one. Descriptors that a method returns belong to
    the caller. `close` may be called twice; after it every method raises `SandboxDestroyed`, so that a reused
    descriptor number can never be mistaken for the workspace.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, resolver: Resolver = "auto", quota: Quota | None = None
    ) -> None:
        self._fd = -1
        self._quota = quota
        if not all(call in os.supports_dir_fd for call in _NEEDED):
            raise BackendUnavailable("this system cannot open files relative to a directory; workspaces need that")
        self.path = os.path.realpath(path)
        self._open = _opener(resolver)
        try:
            self._fd = os.open(self.path, OPEN_DIRECTORY)
        except OSError as error:
            if is_exhaustion(error):
                raise host_failure(error, "open the work directory") from None
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
        fd = self.open_directory(parts)
        try:
            yield fd
        finally:
            os.close(fd)

    def open_directory(self, parts: Parts) -> int:
        """The same, for who closes it."""
        with explained(parts):
            return self._open(self.fd, checked(parts), OPEN_DIRECTORY)

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
    def parent(self, parts: Parts) -> Iterator[tuple[int, str]]:
        """The directory that holds the last name, and that name."""
        if not parts:
            raise PathTraversal(".", "is the workspace itself")
        checked(parts)
        with self.directory(parts[:-1]) as fd:
            yield fd, parts[-1]

    def make_one(self, dir_fd: int, name: str, parts: Parts, *, may_exist: bool = True) -> None:
        """Makes one directory in an open one."""
        with self.charged(parts, DIRECTORY_SPACE):
            try:
                os.mkdir(name, 0o755, dir_fd=dir_fd)
            except FileExistsError:
                if not may_exist:
                    raise

    def charged(self, parts: Parts, added: int, freed: int = 0) -> contextlib.AbstractContextManager[None]:
        """Takes the space that the body is going to use; `LimitExceeded` when the quota has no more."""
        return contextlib.nullcontext() if self._quota is None else self._quota.charged(text_of(parts), added, freed)

    def refund(self, freed: int) -> None:
        if self._quota is not None:
            self._quota.refund(freed)

    def lstat(self, parts: Parts) -> os.stat_result:
        """What is at the path itself; a link is described, not followed."""
        if not parts:
            return os.fstat(self.fd)
        with self.parent(parts) as (fd, name), explained(parts):
            return os.stat(name, dir_fd=fd, follow_symlinks=False)


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
            child = open_one(here, name, _O_PATH | _DIRECTORY)
            os.close(here)
            here = child
        return open_one(here, parts[-1], flags)
    finally:
        os.close(here)


def open_one(dir_fd: int, name: str, flags: int) -> int:
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
        raise explanation(error, parts) from None


def explanation(error: OSError, parts: Parts) -> SandboxError:
    """The typed error for what the system said; one that is typed already stays as it is."""
    if isinstance(error, SandboxError):
        return error
    path = text_of(parts)
    if is_exhaustion(error):
        return host_failure(error, f"open {path!r}")
    match error.errno:
        case errno.ENOENT:
            return FileMissing(path)
        case errno.EEXIST:
            return AlreadyExists(path)
        case errno.ELOOP | errno.EXDEV:
            return PathTraversal(path, "passes through a symbolic link; links are never followed")
        case errno.EACCES | errno.EPERM:
            return AccessDenied(path)
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
