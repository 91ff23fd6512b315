"""Descriptors with one owner, each closed exactly once; and the limit on how many the process may open."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable

import warmcell.cage
from warmcell.cage.linux.descriptors import blocking, make_pair
from warmcell.core.errors import BackendBusy, ExecutionFailed, SandboxError
from warmcell.core.light import on_error
from warmcell.lifetime.ownership import fork_lock, own

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any, TypeVar

    T = TypeVar("T")
else:  # the C module, which loads faster
    import _socket as socket


class Descriptors:
    """The descriptors of one owner, which opens them here, gives away or closes single ones, and closes the rest.

    For one thread at a time. A fork of the program closes its copies. As a context manager it closes all if the block
    raises, for use around the construction of the owner.
    """

    def __init__(self) -> None:
        #: The socket object of each descriptor that has one.
        self._open: dict[int, socket.socket | None] = {}
        own(self)

    def pipe(self) -> tuple[int, int]:
        """The reading and the writing end."""
        with fork_lock:
            reader, writer = _open_with_limit(make_pipe)
            self._open |= {reader: None, writer: None}
        return reader, writer

    def socketpair(self, kind: socket.SocketKind) -> tuple[socket.socket, int]:
        """Two connected Unix sockets: ours, and the descriptor of the peer's."""
        with fork_lock:
            ours, theirs = _open_with_limit(lambda: make_socket_pair(kind))
            self._open |= {ours.fileno(): ours, theirs: None}
        return ours, theirs

    def open(self, opener: Callable[[], int]) -> int:
        """Owns and returns the descriptor that `opener` returns. It must not block: forks wait for it."""
        with fork_lock:
            descriptor = _open_with_limit(opener)
            if descriptor >= _many:
                raise_limit()
            self._open[descriptor] = None
        return descriptor

    def take(self, descriptors: Iterable[int]) -> None:
        """Takes ownership: the previous owner must not close them."""
        self._open.update(dict.fromkeys(descriptors))

    def take_socket(self, descriptor: int, kind: type[socket.socket] = socket.socket) -> socket.socket:
        """Takes ownership of a socket's descriptor. Returns the socket, of class `kind`."""
        made = blocking(kind(fileno=descriptor))
        self._open[descriptor] = made
        return made

    def give(self, descriptor: int) -> int:
        """Passes ownership to the caller, which closes it from now on."""
        del self._open[descriptor]
        return descriptor

    def close(self) -> None:
        self.close_only(*self._open)

    def close_only(self, *descriptors: int) -> None:
        """Closes those of these that are still ours."""
        for descriptor in descriptors:
            if descriptor not in self._open:
                continue
            owner = self._open.pop(descriptor)  # before close(), which may raise: a number must never be closed twice
            if owner is not None:
                owner.detach()
            close(descriptor)

    abandon = close

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._open

    def __enter__(self) -> Descriptors:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self.close()


#: From this descriptor number on, the soft limit is raised before it is reached.
_MANY_OPEN = 256
_many = _MANY_OPEN


def _open_with_limit(opener: Callable[[], T]) -> T:
    """Calls `opener`. If it fails because of the soft limit, raises that limit and tries again."""
    try:
        return opener()
    except OSError as error:
        if error.errno != errno.EMFILE or not raise_limit():
            raise
        return opener()


def raise_limit() -> bool:
    """Raises this process's soft limit on descriptors to the hard limit. Returns whether it was lower.

    Guests get their own limit from their plan. Programs that use select() lose nothing: without the higher limit,
    opening a descriptor that select() does not support would have failed.
    """
    global _many
    _many = 1 << 62
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == hard or soft == resource.RLIM_INFINITY:
            return False
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ImportError, OSError, ValueError):  # Windows, or a kernel that allows less than its hard limit
        return False
    return True


class DescriptorsExhausted(BackendBusy):
    """This process or the host ran out of descriptors. Retry when some were closed."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        SandboxError.__init__(self, message, hint=hint)
        self.waited = 0.0


def is_exhaustion(error: OSError) -> bool:
    """Whether the call failed only because descriptors ran out."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS)


def is_shortage(error: OSError) -> bool:
    """Whether the same call may succeed a moment later."""
    return is_exhaustion(error) or error.errno in (errno.ENOMEM, errno.EAGAIN, errno.EINTR)


def host_failure(error: OSError, doing: str = "carry out the run") -> SandboxError:
    """The typed error for a system call of ours that failed, which is never the guest's fault."""
    known = (_explain_full_group() if error.errno == errno.EAGAIN else None) or _EXHAUSTED.get(error.errno or 0)
    if known is not None:
        what, limit, hint = known
        message = f"could not {doing}: {what}{_soft_limit(limit)}"
        return (DescriptorsExhausted if is_exhaustion(error) else ExecutionFailed)(message, hint=hint)
    what = f" ({error.filename})" if error.filename else ""
    remedy = _hint_if_own_file(error) or _HINTS.get(error.errno or 0)
    return ExecutionFailed(f"could not {doing}: {error.strerror or error}{what}", hint=remedy)


def _hint_if_own_file(error: OSError) -> str | None:
    package = os.path.dirname(warmcell.cage.__path__[0])  # not at import time: a server changes it
    if error.errno != errno.ENOENT:
        return None
    if not str(error.filename or "").startswith(package + os.sep) and os.path.exists(package):
        return None
    return f"Warmcell's own files in {package} are gone: was its environment removed? Reinstall it and restart"


def shortage_from_message(message: str, doing: str) -> SandboxError | None:
    """The typed error if the last message of a child of ours says that a resource ran out."""
    for number in _EXHAUSTED:
        if os.strerror(number) in message:
            return host_failure(OSError(number, os.strerror(number)), doing)
    return None


def _explain_full_group() -> tuple[str, str, str] | None:
    """The reason if EAGAIN comes from a cgroup's limit; the user's limit gives the same errno."""
    group = full_pids_group()
    if group is None:
        return None
    what = f"the cgroup {group[0]} has as many processes and threads as its pids.max of {group[1]} allows"
    return what, "", "raise it (systemd: TasksMax=, containers: --pids-limit), or run fewer at once"


_MORE_DESCRIPTORS = (
    "too many open descriptors in this process",
    "RLIMIT_NOFILE",
    "raise it (`ulimit -n 65536`, or resource.setrlimit in this process), or run fewer at once",
)
#: By errno: what ran out, its limit, and what to do.
_EXHAUSTED = {
    errno.EMFILE: _MORE_DESCRIPTORS,
    errno.ETOOMANYREFS: _MORE_DESCRIPTORS,  # in flight: sent over a socket and not yet received
    errno.ENFILE: ("too many open files on this host", "", "raise it: `sudo sysctl -w fs.file-max=...`"),
    errno.EAGAIN: (
        "too many processes and threads for this user",
        "RLIMIT_NPROC",
        "raise it (`ulimit -u`, or pids.max of the cgroup), or run fewer at once",
    ),
    errno.ENOMEM: ("out of memory", "RLIMIT_AS", "free some, or raise `ulimit -v`"),
    errno.EFBIG: ("the limit on file size is too small", "RLIMIT_FSIZE", "raise it (`ulimit -f unlimited`)"),
}
_HINTS = {
    errno.ENOSPC: "free space there, or set TMPDIR to a directory with free space",
    errno.EDQUOT: "free space there, or set TMPDIR to a directory with free space",
    errno.EROFS: "set TMPDIR to a writable directory",
    errno.ENOENT: "set TMPDIR to a writable directory that exists",
}


def _soft_limit(name: str) -> str:
    try:
        import resource
    except ImportError:  # Windows
        return ""
    if not name:
        return ""
    soft = resource.getrlimit(getattr(resource, name))[0]
    return f" ({name} is {soft})" if soft != resource.RLIM_INFINITY else ""


def open_memory_file(content: bytes) -> int:
    """A descriptor to read the content from. Sealed, so that a guest that reopens it in /proc cannot make it grow."""
    import fcntl

    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    descriptor = os.memfd_create("warmcell", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with on_error(lambda: os.close(descriptor)):
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


# System calls that never block. With many threads they are made without releasing the interpreter lock: each release
# hands the lock to a waiting thread, and getting it back takes two context switches, far longer than closing a
# descriptor. A run closes a dozen.

_libc: Any = None


def keep_interpreter_lock() -> None:
    """From now on these calls keep the interpreter lock. Loading libc takes longer than that saves a single run."""
    global _libc
    if _libc is None and sys.platform == "linux" and sys.maxsize > 1 << 32:
        from warmcell.cage.linux import fast_ctypes

        _libc = fast_ctypes.PyDLL(None, use_errno=True)


def close(descriptor: int) -> None:
    if _libc is None:
        os.close(descriptor)
    elif _libc.close(descriptor) < 0:
        raise _last_error()


def make_pipe() -> tuple[int, int]:
    """The reading and the writing end, which children do not inherit."""
    if _libc is None:
        return os.pipe2(os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
    from warmcell.cage.linux import fast_ctypes

    ends = (fast_ctypes.c_int * 2)()
    if _libc.pipe2(ends, os.O_CLOEXEC) < 0:
        raise _last_error()
    return ends[0], ends[1]


def make_socket_pair(kind: socket.SocketKind) -> tuple[socket.socket, int]:
    """Two connected Unix sockets: ours, and the descriptor of the peer's."""
    if _libc is None:
        ours, theirs = make_pair(kind)
        return ours, theirs.detach()
    from warmcell.cage.linux import fast_ctypes

    ends = (fast_ctypes.c_int * 2)()
    if _libc.socketpair(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC, 0, ends) < 0:
        raise _last_error()
    return blocking(socket.socket(socket.AF_UNIX, kind, 0, ends[0])), ends[1]


def _last_error() -> OSError:
    from warmcell.cage.linux import fast_ctypes

    number = fast_ctypes.get_errno()
    return OSError(number, os.strerror(number))


# Finds the control group whose process limit is reached.

_MOUNTS = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")


def full_pids_group(membership: str = "/proc/self/cgroup", mounts: tuple[str, ...] = _MOUNTS) -> tuple[str, int] | None:
    """The nearest group around this process whose pids.max is reached, and that limit. None if none is found."""
    try:
        with open(membership) as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return None
    for _, controllers, path in lines:
        if not controllers or "pids" in controllers.split(","):
            for mount in mounts:
                found = _find_full_group(mount, path)
                if found is not None:
                    return found
    return None


def _find_full_group(mount: str, path: str) -> tuple[str, int] | None:
    while True:
        most, current = (_number(f"{mount}{path.rstrip('/')}/pids.{name}") for name in ("max", "current"))
        if most is not None and current is not None and current >= most:
            return path, most
        if path == "/":
            return None
        path = os.path.dirname(path)


def _number(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):  # missing, or "max"
        return None
