"""Turns the paths of a policy into mounts: resolves, checks and orders them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from warmcell.core.errors import PolicyViolation
from warmcell.enforcers.host_paths import follow, note_writable
from warmcell.enforcers.layout import Mount
from warmcell.lifetime.descriptors import host_failure
from warmcell.policy.model import AccessMode, AllowedPath
from warmcell.policy.places import KERNEL_PLACES, canonical_target, is_within

_PATH_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)


def resolve_mounts(
    paths: Sequence[AllowedPath], system: Sequence[Mount], links: Sequence[tuple[str, str]], *, pins_links: bool = False
) -> tuple[Mount, ...]:
    """The policy's paths as mounts over `system`, parents before children, so that the deeper rule wins.

    `links` are the cage's top-level symbolic links, such as `/bin` to `usr/bin`; targets are resolved through them.
    `pins_links`: a read-only link in a writable path is mounted on itself, so that the guest cannot replace it. Only
    the native cage can do that; other enforcers refuse such a link.
    """
    mounts: dict[str, Mount] = {}
    for allowed in paths:
        is_pinned = pins_links and _is_link_inside(allowed, paths)
        mount = _pin_link(allowed, links) if is_pinned else _resolve(allowed, links)
        known = mounts.get(mount.target, mount)
        if known.source != mount.source:
            raise PolicyViolation(
                f"{mount.target!r} is allowed twice, with different modes", hint="keep one of the two"
            )
        mounts[mount.target] = known if known.writable else mount  # the wider of two rules for one path wins
    for mount in mounts.values():
        _check_mount_point(mount, [*system, *mounts.values()])
    anchors = {anchor.target: anchor for mount in mounts.values() for anchor in _anchors(mount, mounts.values())}
    merged = {**anchors, **mounts}
    return tuple(sorted(merged.values(), key=lambda mount: (mount.target.count("/"), mount.target)))


def _anchors(narrow: Mount, mounts: Iterable[Mount]) -> Iterator[Mount]:
    """Mounts for the directories between a writable path and a read-only one inside it, which keep them in place.

    Renaming a directory moves the mounts below it: the guest could move the read-only path away and put its own there.
    A mount point can be neither renamed nor removed.
    """
    around = [other for other in mounts if other != narrow and is_within(narrow.target, other.target)]
    wide = max(around, key=lambda other: len(other.target), default=narrow)
    if narrow.writable or not wide.writable:
        return
    names = narrow.target[len(wide.target) + 1 :].split("/")
    for count in range(1, len(names)):
        tail = "/" + "/".join(names[:count])
        anchor = Mount(wide.source + tail, wide.target + tail, writable=True)
        _check_owner(anchor, wide)
        yield anchor


def _check_owner(anchor: Mount, wide: Mount) -> None:
    """In the cage the guest has the access of each mount's owner, so an anchor must not have another owner than the
    path around it.
    """
    mine, other = os.stat(anchor.source), os.stat(wide.source)
    if (mine.st_uid, mine.st_gid) != (other.st_uid, other.st_gid):
        raise PolicyViolation(
            f"{anchor.target!r} contains a read-only path and does not have the owner of {wide.target!r}",
            hint="give both the same owner and group, or allow the whole of it read-only",
        )


def _is_link_inside(allowed: AllowedPath, paths: Iterable[AllowedPath]) -> bool:
    """Whether it is a read-only link that a guest also sees in a writable path, at the same target."""
    if allowed.mode is AccessMode.READ_WRITE or not os.path.islink(allowed.path):
        return False
    around = [it for it in paths if it.mode is AccessMode.READ_WRITE and allowed.path.startswith(f"{it.path}/")]
    return any(it.target + allowed.path[len(it.path) :] == allowed.target for it in around)


def _pin_link(allowed: AllowedPath, links: Sequence[tuple[str, str]]) -> Mount:
    directory, name = os.path.split(allowed.path)
    target = canonical_target(allowed.target, links)
    check_target(target)
    return Mount(os.path.join(os.path.realpath(directory), name), target)


def _resolve(allowed: AllowedPath, links: Sequence[tuple[str, str]]) -> Mount:
    target = canonical_target(allowed.target, links)
    check_target(target)
    found = follow(allowed.path)
    if found.guest_link is not None:
        raise PolicyViolation(f"{allowed.path!r} {found.describe_link(found.guest_link)}", hint=found.remedy)
    with explain_failure(allowed.path):
        source = os.path.realpath(allowed.path, strict=True)
        mode = os.stat(source).st_mode
    if source != found.real:  # a running guest may have put a link there since
        raise PolicyViolation(f"{allowed.path!r} was replaced while it was resolved", hint="try again")
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise PolicyViolation(f"{allowed.path!r} is neither a file nor a directory", hint="allow its directory instead")
    if source == "/":
        raise PolicyViolation("'/' cannot be allowed", hint="name the directories that the guest needs")
    is_writable = allowed.mode is AccessMode.READ_WRITE
    if is_writable:
        with explain_failure(allowed.path):
            note_writable(source)
    return Mount(source, target, is_writable)


@contextmanager
def explain_failure(path: str) -> Iterator[None]:
    """Turns an `OSError` about the path into the caller's fault, and any other into ours."""
    try:
        yield
    except OSError as error:
        if error.errno not in _PATH_ERRORS:
            raise host_failure(error, f"look at {path!r}") from None
        raise PolicyViolation(
            f"{path!r} cannot be allowed: {error.strerror or error}", hint="name a path that exists"
        ) from None


def check_target(target: str) -> None:
    """Refuses targets that are reserved for the cage."""
    if target == "/":
        raise PolicyViolation("nothing can be mounted at '/'", hint="choose a directory below it")
    for reserved in KERNEL_PLACES:
        if is_within(target, reserved):
            raise PolicyViolation(
                f"{target!r} lies in {reserved}, which the cage makes itself", hint="choose another target"
            )


def _check_mount_point(mount: Mount, others: Sequence[Mount]) -> None:
    """A mount inside another needs an existing mount point without links. One made for it would stay on the host, and
    an earlier guest could have planted a link.
    """
    around = [other for other in others if mount.target.startswith(other.target + "/")]
    if not around:
        return
    parent = max(around, key=lambda other: len(other.target))
    point = parent.source + mount.target[len(parent.target) :]
    is_right_kind = os.path.isdir(point) == os.path.isdir(mount.source)
    if os.path.islink(mount.source) and mount.source == point:
        return
    if os.path.realpath(point) != point or not os.path.exists(point) or not is_right_kind:
        raise PolicyViolation(
            f"{mount.target!r} lies inside {parent.target!r}, which has no suitable mount point",
            hint="create it on the host, or name the path without symbolic links",
        )
