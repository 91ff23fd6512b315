"""Maps guest paths to host directories: the work directory and the mounts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import pairwise

from warmcell.core.errors import InvalidRequest, PathTraversal, PolicyViolation
from warmcell.core.records import dataclass
from warmcell.core.request_checks import check_kind
from warmcell.core.types import check_text
from warmcell.enforcers.host_paths import follow
from warmcell.policy.places import WORK_DIR, check_place, is_within
from warmcell.workspace.names import Parts, display_path, split_guest_absolute, split_relative
from warmcell.workspace.root import Root

WORK = WORK_DIR


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A host directory mounted at `guest_path`, read-only unless `writable`."""

    host_path: str | os.PathLike[str]
    guest_path: str
    writable: bool = False

    def __post_init__(self) -> None:
        host = host_path("host_path", self.host_path)
        if not os.path.isdir(host):
            raise InvalidRequest(f"{host!r} is not a directory", field="host_path")
        object.__setattr__(self, "host_path", host)
        object.__setattr__(self, "guest_path", _check_guest_path(self.guest_path))
        if not isinstance(self.writable, bool):
            raise InvalidRequest("must be true or false", field="writable")

    @property
    def host(self) -> str:
        return os.fspath(self.host_path)


@dataclass(frozen=True, slots=True)
class OwnDirectory:
    """A `work_dir` that belongs to its sandbox alone, though it was made before and may outlast it.

    Tools of the host run nothing in it, and all that it contains counts against the sandbox's disk limit.
    """

    path: str

    def __fspath__(self) -> str:
        return self.path


def _check_guest_path(path: str) -> str:
    """Refuse paths that the cage uses itself and paths inside the work directory."""
    try:
        parts = split_guest_absolute(path)
        plain = "/" + "/".join(parts)
        check_place(plain)
    except (PathTraversal, PolicyViolation) as error:
        raise InvalidRequest(error.message, field="guest_path", hint="use an absolute path such as /data") from None
    if parts[0] == "work" and len(parts) > 1:
        raise InvalidRequest(f"cannot mount at {path!r}, inside the work directory", field="guest_path")
    return plain


def host_path(field: str, path: str | os.PathLike[str]) -> str:
    """Resolve a host path given by the caller. `InvalidRequest` if a guest may have created a link in it."""
    text = check_text(field, os.fspath(path))
    found = follow(text)
    if found.foreign_link is not None:
        raise InvalidRequest(f"{text!r} {found.describe_link(found.foreign_link)}", field=field, hint=found.remedy)
    return found.real


def work_path_beside(needed: Iterable[str]) -> str:
    """ "/work", or "host" if the guest needs host files below /work, which the mount would hide."""
    return "host" if any(is_within(path, WORK) for path in needed) else WORK


def guest_work_path(asked: str, host: str) -> str:
    """The guest path of the work directory: /work, or with "host" the same path as on the host."""
    if asked == WORK:
        return WORK
    if asked != "host":
        raise InvalidRequest(f"must be {WORK!r} or 'host', not {asked!r}", field="work_path")
    try:
        check_place(host)
    except PolicyViolation as refused:
        raise InvalidRequest(refused.message, field="work_path", hint=_MOVE) from None
    for place in _SYSTEM:
        if is_within(place, host) or (place == "/etc" and is_within(host, place)):
            raise InvalidRequest(f"{host!r} would hide {place}, which the cage needs", field="work_path", hint=_MOVE)
    return host


#: Directories of every cage.
_SYSTEM = ("/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/var/tmp", "/run")
_MOVE = "use work_path='/work', or choose a subdirectory"


def check_mounts(mounts: Sequence[MountPoint]) -> tuple[MountPoint, ...]:
    """Refuse mounts inside other mounts."""
    checked = tuple(check_kind("mounts", mount, MountPoint) for mount in mounts)
    targets = sorted(split_guest_absolute(mount.guest_path) for mount in checked)
    for outer, inner in pairwise(targets):
        if inner[: len(outer)] == outer:
            raise InvalidRequest(f"/{'/'.join(inner)} is inside another mount", field="mounts")
    return checked


@dataclass(frozen=True, slots=True)
class MountedRoot:
    """A guest directory and the host's root for it."""

    guest: Parts
    root: Root
    is_writable: bool

    def guest_path(self, parts: Parts) -> str:
        return "/" + "/".join((*self.guest, *parts))


class MountTable:
    """The work directory and the mounts. Relative paths belong to the work directory, absolute ones to their mount.

    Agents use absolute guest paths such as "/work/a.txt", because that is what they see. Paths outside all mounts are
    refused.
    """

    def __init__(self, work: MountedRoot, mounts: Sequence[MountedRoot] = ()) -> None:
        self.work = work
        self.all = (work, *mounts)

    def find(self, path: str | os.PathLike[str]) -> tuple[MountedRoot, Parts]:
        """The mount that a path belongs to, and the names beneath it."""
        text = os.fspath(path) if isinstance(path, os.PathLike) else path
        if not isinstance(text, str) or not text.startswith("/"):
            return self.work, split_relative(path)
        parts = split_guest_absolute(text)
        for place in self.all:
            if parts[: len(place.guest)] == place.guest:
                return place, parts[len(place.guest) :]
        raise PathTraversal(display_path(text))

    def find_writable(self, path: str | os.PathLike[str]) -> tuple[Root, Parts]:
        place, parts = self.find(path)
        if not place.is_writable:
            hint = "mount it with writable=True"
            raise PolicyViolation(f"{place.guest_path(parts)!r} is mounted read-only", hint=hint)
        return place.root, parts

    def find_readable(self, path: str | os.PathLike[str]) -> tuple[Root, Parts]:
        place, parts = self.find(path)
        return place.root, parts

    def close(self) -> None:
        for place in self.all:
            place.root.close()
