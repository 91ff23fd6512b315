"""The policy's paths as they are now: a later swap of what stands there is noticed, never followed."""

from __future__ import annotations

import os

from warmcell.enforcers.layout import system_layout
from warmcell.enforcers.mounts import resolve_mounts
from warmcell.policy.model import SandboxPolicy, check_places
from warmcell.policy.resolve import ResolvedPath


def pinned_paths(policy: SandboxPolicy) -> tuple[ResolvedPath, ...]:
    """Resolved once. Raises `PolicyViolation` for what is missing or cannot be shown."""
    if not policy.allowed_paths:
        return ()
    check_places(policy)
    layout = system_layout()
    mounts = resolve_mounts(policy.allowed_paths, layout.mounts, layout.links)
    return tuple(pin(mount.source, mount.target, mount.writable) for mount in mounts)


def pin(source: str, target: str, writable: bool = False) -> ResolvedPath:
    """One path with the identity of what stands there, for the cage to compare."""
    descriptor = os.open(source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        return ResolvedPath(source, target, writable, f"{status.st_dev}:{status.st_ino}")
    finally:
        os.close(descriptor)
