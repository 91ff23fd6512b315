"""Where things are in the guest's world, and which of these places a policy may not take. Pure module."""

from __future__ import annotations

from collections.abc import Iterable

from warmcell.cage.environment import HOME_DIR as HOME_DIR
from warmcell.core.errors import PolicyViolation

WORK_DIR = "/work"
CODE_DIR = "/code"
OUT_DIR = "/out"
#: Where programs work that were written for sandboxes of others (E2B's): names that everybody knows.
USER_HOME, WORKSPACE_DIR = "/home/user", "/workspace"
#: Who finds one of these names has learnt nothing about anybody.
COMMON_PLACES = frozenset({"/", WORK_DIR, OUT_DIR, USER_HOME, WORKSPACE_DIR})

#: The kernel's, made anew for each cage.
KERNEL_PLACES = ("/proc", "/dev", "/sys")
#: With all that is in them: the program's own files, what a compiler made of them, and the kernel's.
_CLOSED = (*KERNEL_PLACES, CODE_DIR, OUT_DIR)
#: Scratch that is private to a run. Host paths can be shown inside, never instead: what a guest believes to be its own
#: (and what the cage takes for the guest's own, such as the sockets in it) would be the host's.
_PRIVATE = ("/tmp", HOME_DIR)


def check_place(target: str) -> None:
    """Refuses the places that the cage keeps for itself. `/work` may be taken: it is where the work is."""
    for place in _CLOSED:
        if is_within(target, place):
            raise PolicyViolation(f"{target!r} lies in {place}, which the cage makes itself", hint=_ELSEWHERE)
    for place in (*_CLOSED, *_PRIVATE):
        if is_within(place, target):
            raise PolicyViolation(f"{target!r} would cover {place}, which is the guest's own", hint=_ELSEWHERE)


_ELSEWHERE = "name the directories below it that are needed, or show it at another place (at=...)"


def narrowed(paths: Iterable[tuple[str, bool]]) -> tuple[str, str] | None:
    """The first writable path and read-only one in it (or the same) among (path, writable) pairs."""
    known = tuple(paths)
    pairs = ((wide, narrow) for wide, is_wide in known if is_wide for narrow, may_write in known if not may_write)
    return next(((wide, narrow) for wide, narrow in pairs if is_within(narrow, wide)), None)


def is_within(path: str, directory: str) -> bool:
    """Whether `path` is the directory or lies below it, by name."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")
