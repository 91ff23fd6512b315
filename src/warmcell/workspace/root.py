"""Root: an open directory, and opens beneath it that cannot follow a link out.

A guest can create and swap links at any moment, so checking a path before opening it is a race. Instead the kernel
refuses symbolic links during the open (`openat2`); without that call, each component is opened with O_NOFOLLOW relative
to the one before. Links that stay inside are refused too. The result is checked by descriptor: only regular files and
directories are accepted, and O_NONBLOCK prevents blocking on a FIFO.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections import deque
from collections.abc import Iterator

from warmcell.core.errors import (
    BackendUnavailable,
    InvalidRequest,
    PathTraversal,
    PolicyViolation,
    SandboxDestroyed,
    SandboxError,
)
from warmcell.core.light import Closing, closing_fd, on_error
from warmcell.core.types import MIB
from warmcell.lifetime.descriptors import host_failure, is_exhaustion
from warmcell.lifetime.own_modes import make_directory
from warmcell.lifetime.ownership import Lock
from warmcell.workspace import openat2
from warmcell.workspace.errors import (
    AccessDenied,
    AlreadyExists,
    FileMissing,
    LimitExceeded,
    WorkspaceError,
    WrongKind,
)
from warmcell.workspace.names import Parts, printable

_BLOCK = 4096
#: A directory takes a block, and so does an empty file, so that the number of names is bounded too.
DIRECTORY_SPACE = _BLOCK


def space_for(size: int) -> int:
    """The space that a file of that size takes."""
    return max(1, -(-size // _BLOCK)) * _BLOCK


def space_freed(state: os.stat_result) -> int:
    """The space that removing the file or directory frees; for an empty file the block that `space_for` charges.

    A file that has another name, which a guest may have given it, frees none; nor does a link, which is not charged.
    """
    if stat.S_ISDIR(state.st_mode):
        return DIRECTORY_SPACE  # its own blocks, of which some file systems show none, were never charged
    if stat.S_ISREG(state.st_mode) and not state.st_size:
        return _BLOCK if state.st_nlink == 1 else 0
    return state.st_blocks * 512 if state.st_nlink == 1 else 0


class Quota:
    """Limits the space that host-side writes take in all writable directories of a sandbox together.

    They count against the same disk limit as the guests' writes.

    Replaced and removed files are refunded by `space_freed`, not by size: removing a guest's sparse file must not
    free space that was never taken.
    """

    def __init__(
        self,
        disk_mb: int,
        what: str = "of disk of the sandbox",
        hint: str = "remove files, or give the sandbox limits=Limits(disk_mb=...)",
        used: int = 0,
    ) -> None:
        self._limit, self._what, self._hint = disk_mb * MIB, what, hint
        self._used = used
        #: False if guests can add files without a charge: removing those would refund space without end.
        self.has_refunds = True
        self._lock = threading.Lock()
        #: Held while files are replaced or removed: two callers that find the same file must not both be refunded.
        self.replacing = Lock()

    @property
    def room(self) -> int:
        return self._limit - self._used

    @contextlib.contextmanager
    def charge(self, path: str, added: int, freed: int = 0) -> Iterator[None]:
        """Charge the space that the body takes; refund it if the body raises."""
        with self._lock:
            before = self._used
            self._used = after = self._after(path, added, freed)
        with on_error(lambda: self._release(after - before)):
            yield

    def check_room(self, path: str, added: int, freed: int) -> None:
        """Raise `LimitExceeded` if `charge` would do so now."""
        with self._lock:
            self._after(path, added, freed)

    def _after(self, path: str, added: int, freed: int) -> int:
        """The space used after a charge."""
        after = max(0, self._used + added - freed * self.has_refunds)
        if after > self._limit and after > self._used:
            reason = f"would take more than the {self._limit // MIB} MB {self._what}"
            raise LimitExceeded(path, reason, limit=self._limit, hint=self._hint)
        return after

    def refund(self, freed: int) -> None:
        if self.has_refunds:
            self._release(freed)

    def note_replaced(self, added: int, freed: int) -> None:
        """Charge an earlier state that has replaced the present one. It may exceed the limit, as it did then."""
        with self._lock:
            self._used = max(0, self._used + added - freed * self.has_refunds)

    def _release(self, freed: int) -> None:
        with self._lock:
            self._used = max(0, self._used - freed)


TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Resolver = Literal["auto", "openat2", "walk"]

_O_PATH = getattr(os, "O_PATH", os.O_RDONLY)
_DIRECTORY = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
OPEN_DIRECTORY = os.O_RDONLY | _DIRECTORY
OPEN_FILE = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
OPEN_FILE |= getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
#: Names of our temporary files. Listings show them: hiding names by prefix would let a guest hide its own files.
_TEMPORARY_PREFIX = ".warmcell-"
#: The latest temporary names of this process, for `is_temporary_name`.
_temporary_names: deque[str] = deque(maxlen=1024)
_NEEDED = (os.open, os.stat, os.mkdir, os.unlink, os.rmdir, os.rename)


def temporary_name() -> str:
    """A random name for a file or directory that is about to be renamed or removed."""
    name = _TEMPORARY_PREFIX + os.urandom(12).hex()
    _temporary_names.append(name)
    return name


def is_temporary_name(name: str) -> bool:
    """Whether this process created the name lately. The prefix alone proves nothing: guests may use it."""
    return name.startswith(_TEMPORARY_PREFIX) and name in _temporary_names


class Root(Closing):
    """The host's only access to a workspace. Methods take split paths: see `names.py`.

    Writes are charged to `quota`, if there is one. The caller owns descriptors that a method returns. `close` is
    idempotent; after it every method raises `SandboxDestroyed`, so that a reused descriptor number is never mistaken
    for the workspace.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        resolver: Resolver = "auto",
        quota: Quota | None = None,
        descriptor: int | None = None,
    ) -> None:
        """`descriptor`: an open directory to use in place of the one at `path`, such as an overlay over it."""
        self._fd = -1
        self._quota = quota
        #: Relative paths that are read-only: tools of the host execute their content.
        self.protected: tuple[Parts, ...] = ()
        if not all(call in os.supports_dir_fd for call in _NEEDED):
            raise BackendUnavailable("workspaces need openat(), which this system does not support")
        self.path = os.path.realpath(path)
        has_openat2 = resolver == "openat2" or (resolver == "auto" and openat2.is_available())
        self._open = _open_by_openat2 if has_openat2 else _open_by_walk
        try:
            self._fd = os.open(self.path, OPEN_DIRECTORY) if descriptor is None else os.dup(descriptor)
        except OSError as error:
            if is_exhaustion(error):
                raise host_failure(error, "open the work directory") from None
            raise InvalidRequest(f"{self.path!r} is not a directory: {error.strerror}", field="work_dir") from None

    @property
    def fd(self) -> int:
        if self._fd < 0:
            raise SandboxDestroyed("the workspace is closed")
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def directory(self, parts: Parts) -> closing_fd:
        """A directory beneath the root, open for listing."""
        return closing_fd(self.open_directory(parts))

    def open_directory(self, parts: Parts) -> int:
        """Open a directory; the caller closes it."""
        with translate_os_errors(parts):
            return self._open(self.fd, check_parts(parts), OPEN_DIRECTORY)

    @contextlib.contextmanager
    def file(self, parts: Parts) -> Iterator[int]:
        """A regular file beneath the root, open for reading."""
        with translate_os_errors(parts):
            fd = self._open(self.fd, check_parts(parts), OPEN_FILE)
        with closing_fd(fd):
            require_regular(fd, parts)
            yield fd

    @contextlib.contextmanager
    def parent(self, parts: Parts) -> Iterator[tuple[int, str]]:
        """The directory of the last name, and that name."""
        if not parts:
            raise PathTraversal(".", "is the workspace itself")
        check_parts(parts)
        with self.directory(parts[:-1]) as fd:
            yield fd, parts[-1]

    def make_one(self, dir_fd: int, name: str, parts: Parts, *, may_exist: bool = True) -> None:
        """Create a directory in an open one."""
        try:
            with self.charge(parts, DIRECTORY_SPACE):
                make_directory(name, 0o755, dir_fd=dir_fd)
        except FileExistsError:
            if not may_exist:
                raise

    def charge(self, parts: Parts, added: int, freed: int = 0) -> contextlib.AbstractContextManager[None]:
        """Charge the space that the body takes. Raises `LimitExceeded` if the quota is used up."""
        return contextlib.nullcontext() if self._quota is None else self._quota.charge(text_of(parts), added, freed)

    def check_room(self, parts: Parts, added: int, freed: int) -> None:
        """Raise `LimitExceeded` if the quota has no room for several writes together."""
        if self._quota is not None:
            self._quota.check_room(text_of(parts), added, freed)

    def check_unprotected(self, parts: Parts) -> None:
        """Refuse to change a protected path, anything below it, or a directory that contains it."""
        for protected in self.protected:
            shared = min(len(parts), len(protected))
            if parts and parts[:shared] == protected[:shared]:
                reason = f"{text_of(parts)!r} is read-only: tools of the host execute {text_of(protected)!r}"
                hint = "change it on the host, or grant it with allow_read_write in the policy"
                raise PolicyViolation(reason, hint=hint)

    def replacing(self) -> contextlib.AbstractContextManager[object]:
        """Held from looking at a file until it has been replaced or removed. Not reentrant."""
        return contextlib.nullcontext() if self._quota is None else self._quota.replacing

    def refund(self, freed: int) -> None:
        if self._quota is not None:
            self._quota.refund(freed)

    def note_replaced(self, added: int, freed: int) -> None:
        if self._quota is not None:
            self._quota.note_replaced(added, freed)

    def lstat(self, parts: Parts) -> os.stat_result:
        """Stat the path without following a final link."""
        if not parts:
            return os.fstat(self.fd)
        with self.parent(parts) as (fd, name), translate_os_errors(parts):
            return os.stat(name, dir_fd=fd, follow_symlinks=False)

    def exists(self, parts: Parts) -> bool:
        """Whether the path exists; a final link is not followed."""
        try:
            self.lstat(parts)
        except FileMissing:
            return False
        return True


def _open_by_openat2(root: int, parts: Parts, flags: int) -> int:
    # openat2 refuses links itself. O_NOFOLLOW would turn that into ENOTDIR, or open the link with O_PATH.
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
    """Open one name. On some systems a link in place of a directory gives ENOTDIR; report it as ELOOP."""
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
    """Stat an open file and refuse anything but a regular file."""
    state = os.fstat(fd)
    if stat.S_ISDIR(state.st_mode):
        raise WrongKind(text_of(parts), "is a directory")
    if not stat.S_ISREG(state.st_mode):
        raise PathTraversal(text_of(parts), "is neither a file nor a directory")
    return state


def check_parts(parts: Parts) -> Parts:
    """A second check of the names, in case `names.py` has let one through."""
    for name in parts:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise PathTraversal(text_of(parts), "contains a name that is not plain")
    return parts


def text_of(parts: Parts) -> str:
    """The path as a caller would write it."""
    return printable("/".join(parts)) or "."


@contextlib.contextmanager
def translate_os_errors(parts: Parts) -> Iterator[None]:
    """Turn an `OSError` about a path into a typed error."""
    try:
        yield
    except OSError as error:
        raise to_workspace_error(error, parts) from None


def to_workspace_error(error: OSError, parts: Parts) -> SandboxError:
    """The typed error for an `OSError`; a typed one is returned unchanged."""
    if isinstance(error, SandboxError):
        return error
    path = text_of(parts)
    if is_exhaustion(error):
        return host_failure(error, f"open {path!r}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):  # the disk's fault, not that of the path
        return host_failure(error, f"write {path!r}")
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
