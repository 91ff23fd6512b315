"""The directories of the guest, and which of them a policy may not use. Pure module."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence

from warmcell.cage.environment import HOME_DIR as HOME_DIR
from warmcell.core.errors import PolicyViolation

WORK_DIR = "/work"
CODE_DIR = "/code"
OUT_DIR = "/out"
#: A link to /tmp, unless something of the host is shown below it.
OTHER_TMP = "/var/tmp"
#: Work directories of programs that were written for other sandboxes, such as E2B's.
USER_HOME, WORKSPACE_DIR = "/home/user", "/workspace"
#: Names that reveal nothing about the caller.
COMMON_PLACES = frozenset({"/", WORK_DIR, OUT_DIR, USER_HOME, WORKSPACE_DIR})

#: Kernel file systems, mounted anew for each cage.
KERNEL_PLACES = ("/proc", "/dev", "/sys")
#: Reserved with everything below: the program's files, build output, and the kernel's file systems.
_CLOSED = (*KERNEL_PLACES, CODE_DIR, OUT_DIR)
#: Scratch space of a run. Host paths may be shown inside it, but not replace it: what the guest and the cage treat as
#: the guest's own, such as sockets, would be the host's.
_PRIVATE = ("/tmp", HOME_DIR)


def check_place(target: str) -> None:
    """Refuse paths that are reserved for the cage. `/work` may be used."""
    for place in _CLOSED:
        if is_within(target, place):
            raise PolicyViolation(f"{target!r} lies in {place}, which is reserved for the cage", hint=_ELSEWHERE)
    for place in (*_CLOSED, *_PRIVATE):
        if is_within(place, target):
            raise PolicyViolation(f"{target!r} would cover {place}, which is reserved for the guest", hint=_ELSEWHERE)


_ELSEWHERE = "name the directories below it that are needed, or show it at another place (at=...)"


def find_narrowing(paths: Iterable[tuple[str, bool]]) -> tuple[str, str] | None:
    """Among (path, writable) pairs, the first writable path and a read-only one inside it (or equal)."""
    known = tuple(paths)
    pairs = ((wide, narrow) for wide, is_wide in known if is_wide for narrow, may_write in known if not may_write)
    return next(((wide, narrow) for wide, narrow in pairs if is_within(narrow, wide)), None)


def is_within(path: str, directory: str) -> bool:
    """Whether `path` is the directory or below it, judged by name."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def canonical_target(target: str, links: Sequence[tuple[str, str]]) -> str:
    """Resolve a link at the start of the target: `/bin/x` becomes `/usr/bin/x` if `/bin` links to `/usr/bin`."""
    for link, destination in links:
        if is_within(target, link):
            return posixpath.normpath(posixpath.join("/", destination) + target[len(link) :])
    return target
