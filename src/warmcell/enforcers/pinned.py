"""A policy's own paths as they are now: a later swap of what stands there is noticed, never followed."""

from __future__ import annotations

import os

from warmcell.enforcers.layout import Mount, system_layout
from warmcell.policy.model import SandboxPolicy, check_places
from warmcell.policy.resolve import ResolvedPath


def pinned_paths(policy: SandboxPolicy) -> tuple[ResolvedPath, ...]:
    """Resolved once. Raises `PolicyViolation` for what is missing or cannot be shown."""
    if not policy.allowed_paths:
        return ()
    from warmcell.enforcers.mounts import explained, resolve_mounts  # most policies name none

    def pinned(mount: Mount) -> ResolvedPath:
        with explained(mount.source):
            return pin(mount.source, mount.target, mount.writable)

    check_places(policy)
    layout = system_layout()
    return tuple(map(pinned, resolve_mounts(policy.allowed_paths, layout.mounts, layout.links)))


def pin(source: str, target: str, writable: bool = False) -> ResolvedPath:
    """One path with the identity of what stands there, for the cage to compare."""
    descriptor = os.open(source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        return ResolvedPath(source, target, writable, f"{status.st_dev}:{status.st_ino}")
    finally:
        os.close(descriptor)
