"""Descriptors with one owner: each is closed once, in every way that the owner can end."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable

from warmcell.core.errors import ExecutionFailed, SandboxError
from warmcell.lifetime.ownership import own, undisturbed_by_forks

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
else:  # their halves in C: the rest takes longer to load
    import _socket as socket


class Descriptors:
    """A set that belongs to one object, which opens through it, gives away or closes single ones, and closes the rest.

    For one thread at a time. A fork of the process closes its copies of them. Use it as a context manager around the
    making of an object: what was opened before a failure is closed again.
    """

    def __init__(self) -> None:
        #: With the socket that was made of a descriptor, which must be the one to close it.
        self._open: dict[int, socket.socket | None] = {}
        own(self)

    def pipe(self) -> tuple[int, int]:
        """The reading and the writing end."""
        with undisturbed_by_forks:
            reader, writer = os.pipe2(os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
            self._open |= {reader: None, writer: None}
        return reader, writer

    def socketpair(self, kind: socket.SocketKind) -> tuple[socket.socket, int]:
        """Two connected local sockets: ours, and the descriptor of the one that is for somebody else."""
        with undisturbed_by_forks:
            ours, other = socket.socketpair(socket.AF_UNIX, kind)
            theirs = other.detach()
            self._open |= {ours.fileno(): ours, theirs: None}
        return ours, theirs

    def opened(self, opening: Callable[[], int]) -> int:
        """What `opening` returns, now ours. It must not block: forks wait for it."""
        with undisturbed_by_forks:
            descriptor = opening()
            self._open[descriptor] = None
        return descriptor

    def take(self, descriptors: Iterable[int]) -> None:
        """From somebody who had them, who must not close them any more."""
        self._open.update(dict.fromkeys(descriptors))

    def take_socket(self, descriptor: int, kind: type[socket.socket] = socket.socket) -> socket.socket:
        """The same, as the socket that it is; of a class of the caller's where that of the C half is too little."""
        made = kind(fileno=descriptor)
        self._open[descriptor] = made
        return made

    def give(self, descriptor: int) -> int:
        """To somebody who closes it from now on."""
        del self._open[descriptor]
        return descriptor

    def close(self) -> None:
        self.close_only(*self._open)

    def close_only(self, *descriptors: int) -> None:
        """Those of them that are still ours."""
        for descriptor in descriptors:
            if descriptor not in self._open:
                continue
            made_of_it = self._open.pop(descriptor)  # first: a number must never be closed twice, whatever close() says
            if made_of_it is not None:
                made_of_it.close()
            else:
                os.close(descriptor)

    abandon = close

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._open

    def __enter__(self) -> Descriptors:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self.close()


class DescriptorsExhausted(ExecutionFailed):
    """There are none left, here or on the host. Worth another attempt when something was closed."""


def is_exhaustion(error: OSError) -> bool:
    """Whether descriptors ran out, which says nothing about what was tried."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS)


def is_shortage(error: OSError) -> bool:
    """Whether the same call may well work a moment later."""
    return is_exhaustion(error) or error.errno in (errno.ENOMEM, errno.EAGAIN, errno.EINTR)


def host_failure(error: OSError, doing: str = "carry out the run") -> SandboxError:
    """The typed error for a call of the kernel's that failed on our side; never the guest's fault."""
    known = _EXHAUSTED.get(error.errno or 0)
    if known is not None:
        what, limit, hint = known
        kind = DescriptorsExhausted if is_exhaustion(error) else ExecutionFailed
        return kind(f"could not {doing}: {what}{_soft_limit(limit)}", hint=hint)
    what = f" ({error.filename})" if error.filename else ""
    return ExecutionFailed(f"could not {doing}: {error.strerror or error}{what}", hint=_HINTS.get(error.errno or 0))


def told_shortage(last_words: str, doing: str) -> SandboxError | None:
    """The typed error for what a process of ours said when it died, where it died for want of what can run out."""
    for number in _EXHAUSTED:
        if os.strerror(number) in last_words:
            return host_failure(OSError(number, os.strerror(number)), doing)
    return None


_MORE_DESCRIPTORS = (
    "this process has as many open descriptors as its limit allows",
    "RLIMIT_NOFILE",
    "raise it (`ulimit -n 65536`, or resource.setrlimit in this process), or run less at once",
)
#: What ran out, the limit that says how much there is, and what to do.
_EXHAUSTED = {
    errno.EMFILE: _MORE_DESCRIPTORS,
    errno.ETOOMANYREFS: _MORE_DESCRIPTORS,  # sent and not received yet
    errno.ENFILE: (
        "this host has as many open files as fs.file-max allows",
        "",
        "raise it: `sudo sysctl -w fs.file-max=...`",
    ),
    errno.EAGAIN: (
        "this user has as many processes and threads as it may have",
        "RLIMIT_NPROC",
        "raise it (`ulimit -u`, or pids.max of the cgroup), or run less at once",
    ),
    errno.ENOMEM: ("there is no memory for it", "RLIMIT_AS", "free some, or raise `ulimit -v`"),
    errno.EFBIG: ("files may not be as large as it needs", "RLIMIT_FSIZE", "raise it (`ulimit -f unlimited`)"),
}
_HINTS = {
    errno.ENOSPC: "make room there, or set TMPDIR to a directory with room",
    errno.EDQUOT: "make room there, or set TMPDIR to a directory with room",
    errno.EROFS: "set TMPDIR to a directory that may be written to",
    errno.ENOENT: "set TMPDIR to a directory that is there and may be written to",
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
