"""Pins the paths of a policy by device and inode, so that the cage can refuse a path that was replaced since."""

from __future__ import annotations

import os

from warmcell.core.light import closing_fd
from warmcell.core.records import replace
from warmcell.enforcers.layout import Mount, system_layout
from warmcell.policy.model import OwnPath, SandboxPolicy, check_places
from warmcell.policy.resolve import ResolvedPath


def pin_paths(policy: SandboxPolicy) -> tuple[ResolvedPath, ...]:
    """The policy's paths, pinned. Raises `PolicyViolation` for one that is missing or cannot be mounted."""
    if not policy.allowed_paths:
        return ()
    from warmcell.enforcers.mounts import explain_failure, resolve_mounts  # most policies name none

    def pin_mount(mount: Mount) -> ResolvedPath:
        with explain_failure(mount.source):
            return replace(pin(mount.source, mount.target, mount.writable), is_own=mount.target in own)

    own = {allowed.target for allowed in policy.allowed_paths if isinstance(allowed, OwnPath)}
    check_places(policy)
    layout = system_layout()
    return tuple(map(pin_mount, resolve_mounts(policy.allowed_paths, layout.mounts, layout.links, pins_links=True)))


def pin(source: str, target: str, writable: bool = False) -> ResolvedPath:
    """One path with its device and inode, for the cage to compare."""
    with closing_fd(os.open(source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)) as descriptor:
        status = os.fstat(descriptor)
        return ResolvedPath(source, target, writable, f"{status.st_dev}:{status.st_ino}")
