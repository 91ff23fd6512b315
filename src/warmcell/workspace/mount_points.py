"""Which host directory a path of the guest's world belongs to. Nothing is opened beyond the directories themselves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import pairwise

from warmcell.core.errors import InvalidRequest, PathTraversal, PolicyViolation
from warmcell.core.records import dataclass
from warmcell.core.types import check_text
from warmcell.enforcers.host_paths import follow
from warmcell.policy.places import WORK_DIR, check_place, is_within
from warmcell.workspace.names import Parts, shown, split_guest_absolute, split_relative
from warmcell.workspace.root import Root

WORK = WORK_DIR


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A host directory that the guest sees at `guest_path`, read-only unless said otherwise."""

    host_path: str | os.PathLike[str]
    guest_path: str
    writable: bool = False

    def __post_init__(self) -> None:
        host = host_path("host_path", self.host_path)
        if not os.path.isdir(host):
            raise InvalidRequest(f"{host!r} is not a directory", field="host_path")
        object.__setattr__(self, "host_path", host)
        object.__setattr__(self, "guest_path", _checked_guest_path(self.guest_path))
        if not isinstance(self.writable, bool):
            raise InvalidRequest("must be true or false", field="writable")

    @property
    def host(self) -> str:
        return os.fspath(self.host_path)


def _checked_guest_path(path: str) -> str:
    """A place of its own: neither one that the cage keeps for itself, nor inside the work directory."""
    try:
        parts = split_guest_absolute(path)
        plain = "/" + "/".join(parts)
        check_place(plain)
    except (PathTraversal, PolicyViolation) as error:
        raise InvalidRequest(error.message, field="guest_path", hint="use an absolute path such as /data") from None
    if parts[0] == "work" and len(parts) > 1:
        raise InvalidRequest(f"nothing can be mounted at {path!r}", field="guest_path")
    return plain


def host_path(field: str, path: str | os.PathLike[str]) -> str:
    """A path of the host that the caller named, without links; `InvalidRequest` where one may be a guest's."""
    text = check_text(field, os.fspath(path))
    found = follow(text)
    if found.foreign_link is not None:
        raise InvalidRequest(f"{text!r} {found.complaint(found.foreign_link)}", field=field, hint=found.remedy)
    return found.real


def work_path_beside(needed: Iterable[str]) -> str:
    """ "/work", unless the host has something there that guests need, which it would cover: then "host"."""
    return "host" if any(is_within(path, WORK) for path in needed) else WORK


def guest_work_path(asked: str, host: str) -> str:
    """Where guests see the work directory: at /work, or, asked for by "host", at its own place on the host."""
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
            raise InvalidRequest(f"{host!r} would cover {place}, which the cage needs", field="work_path", hint=_MOVE)
    return host


#: What every cage shows of the host, or makes of its own.
_SYSTEM = ("/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/var/tmp", "/run")
_MOVE = "use work_path='/work', or work in a directory below it"


def check_mounts(mounts: Sequence[MountPoint]) -> tuple[MountPoint, ...]:
    """Mounts that do not hide one another."""
    checked = tuple(mounts)
    for mount in checked:
        if not isinstance(mount, MountPoint):
            raise InvalidRequest(f"must be MountPoint, not {type(mount).__name__}", field="mounts")
    targets = sorted(split_guest_absolute(mount.guest_path) for mount in checked)
    for outer, inner in pairwise(targets):
        if inner[: len(outer)] == outer:
            raise InvalidRequest(f"/{'/'.join(inner)} lies within another mount", field="mounts")
    return checked


@dataclass(frozen=True, slots=True)
class Place:
    """A directory of the guest's world and the host's hold on it."""

    guest: Parts
    root: Root
    is_writable: bool

    def guest_path(self, parts: Parts) -> str:
        return "/" + "/".join((*self.guest, *parts))


class Places:
    """The work directory and the mounts. Relative paths belong to the work directory, absolute ones to what they name.

    Agents speak of "/work/a.txt" because that is what they see inside, so absolute guest paths are understood; they
    are compared by whole components, and one that belongs to no mount is refused like any other way out.
    """

    def __init__(self, work: Place, mounts: Sequence[Place] = ()) -> None:
        self.work = work
        self._all = (work, *mounts)

    def find(self, path: str | os.PathLike[str]) -> tuple[Place, Parts]:
        """The place that a path belongs to, and the names beneath it."""
        text = os.fspath(path) if isinstance(path, os.PathLike) else path
        if not isinstance(text, str) or not text.startswith("/"):
            return self.work, split_relative(path)
        parts = split_guest_absolute(text)
        for place in self._all:
            if parts[: len(place.guest)] == place.guest:
                return place, parts[len(place.guest) :]
        raise PathTraversal(shown(text))

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
        for place in self._all:
            place.root.close()
