"""GuestConfig: the settings of a sandbox that concern its guest, and the resulting policy."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from warmcell.core.request_checks import check_kind
from warmcell.core.types import Limits
from warmcell.policy.gpu import check_gpus
from warmcell.policy.model import AccessMode, AllowedPath, OwnPath, SandboxPolicy
from warmcell.policy.places import is_within
from warmcell.workspace.mount_points import WORK, MountPoint
from warmcell.workspace.protected_paths import PROTECTED, find_protected

if TYPE_CHECKING:
    from warmcell.enforcers.contract import SandboxEnforcer
    from warmcell.images import Image
    from warmcell.languages.config import ProcessConfig
    from warmcell.net.rules.fetch_policy import FetchPolicy
    from warmcell.pool.zygote import Overlay

#: Where guests find installed packages.
PACKAGES = "/packages"
#: npm's packages lie below those of Python; Node finds /node_modules from every directory.
NPM_PLACE, NODE_MODULES = ".npm", "/node_modules"
#: The policy of a sandbox whose caller gave none.
DEFAULT_POLICY = SandboxPolicy(allow_process_spawn=True)
#: JSON in, JSON out: the requests of a guest's `fetch` and `curl`.
FetchCall = Callable[[bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class GuestConfig:
    """Fixed when the guest is made."""

    work_dir: str
    is_work_writable: bool = True
    #: Whether the work directory is a host directory of the caller, not a private one.
    is_host_dir: bool = False
    #: Whether all that it contains counts as the sandbox's disk use.
    is_own: bool = False
    mounts: tuple[MountPoint, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    memory_limit_mb: int | None = None
    fuel: int | None = None
    policy: SandboxPolicy | None = None
    fetch: FetchCall | None = None
    fetch_policy: FetchPolicy | None = None
    process_config: ProcessConfig | None = None
    enforcer: str | SandboxEnforcer = "auto"
    allow_weaker: str | None = None
    image: str | Image | None = None
    user: str | None = None
    idle_timeout: float | None = None
    #: Where the guest sees the work directory.
    work_path: str = WORK
    #: A directory of installed packages, read-only for the guest.
    packages: str | None = None
    #: What guests see in place of the work directory.
    overlay: Overlay | None = None

    def find_protected(self, directory: str) -> tuple[str, ...]:
        """Paths in a writable directory that tools of the host execute, such as git's configuration and hooks.

        A policy that grants such a path by name keeps it writable.
        """
        if directory == self.work_dir and (not self.is_host_dir or self.overlay is not None):
            return ()
        return tuple(path for path in find_protected(directory) if not _is_granted(self.policy, path))


def sandbox_policy(config: GuestConfig) -> SandboxPolicy:
    """The caller's policy with the workspace and the mounts added. Without one, processes are allowed, nothing else."""
    policy = config.policy or DEFAULT_POLICY
    mode = AccessMode.READ_WRITE if config.is_work_writable else AccessMode.READ_ONLY
    own = OwnPath if config.is_own else AllowedPath
    paths = [own(config.work_dir, mode, config.work_path)]
    for mount in config.mounts:
        if mount.guest_path != WORK:
            mode = AccessMode.READ_WRITE if mount.writable else AccessMode.READ_ONLY
            kind = own if mount.host == config.work_dir else AllowedPath
            paths.append(kind(mount.host, mode, mount.guest_path))
    paths += _protect_host_tools(config, paths)
    if config.overlay is None:
        paths += _protect_environment(config.process_config, paths)
    if config.packages is not None:
        paths.append(AllowedPath(config.packages, AccessMode.READ_ONLY, PACKAGES))
        policy = replace(policy, env={"PYTHONPATH": PACKAGES, "PATH": _search_path(config, policy), **policy.env})
        modules = os.path.join(config.packages, NPM_PLACE, "node_modules")
        if os.path.isdir(modules):
            paths.append(AllowedPath(modules, AccessMode.READ_ONLY, NODE_MODULES))
    return replace(policy, allowed_paths=(*policy.allowed_paths, *paths))


def _search_path(config: GuestConfig, policy: SandboxPolicy) -> str:
    """The guest's usual PATH behind the commands of installed packages, as in a virtual environment."""
    from warmcell.languages.config import ProcessConfig
    from warmcell.languages.host_tools import USUAL_PATH, host_tools

    usual = host_tools(config.process_config or ProcessConfig()).path if policy.allow_process_spawn else USUAL_PATH
    return ":".join((f"{PACKAGES}/bin", f"{NODE_MODULES}/.bin", *usual))


def list_protected(policy: SandboxPolicy | None, directory: str) -> tuple[tuple[str, ...], ...]:
    """Paths of a host directory that the file methods refuse to change, since models call them too."""
    found = (tuple(os.path.relpath(path, directory).split("/")) for path in find_protected(directory))
    every = dict.fromkeys((*PROTECTED, *found))
    return tuple(parts for parts in every if not _is_granted(policy, os.path.join(directory, *parts)))


def _protect_host_tools(config: GuestConfig, paths: Sequence[AllowedPath]) -> list[AllowedPath]:
    """Makes what tools of the host execute read-only in writable host directories, each of which is searched once."""
    writable = [wide for wide in paths if wide.mode is AccessMode.READ_WRITE]
    found = {directory: config.find_protected(directory) for directory in {wide.path for wide in writable}}
    return [
        AllowedPath(path, AccessMode.READ_ONLY, wide.target + path[len(wide.path) :])
        for wide in writable
        for path in found[wide.path]
    ]


def _is_granted(policy: SandboxPolicy | None, path: str) -> bool:
    granted = () if policy is None else policy.allowed_paths
    return any(item.mode is AccessMode.READ_WRITE and is_within(path, item.path) for item in granted)


def _protect_environment(config: ProcessConfig | None, paths: Sequence[AllowedPath]) -> list[AllowedPath]:
    """Makes the virtual environment of the configured interpreter read-only where a guest could write to it.

    Our own processes start that interpreter outside of the cage, and would run what a guest put there.
    """
    from warmcell.languages.host_tools import environment_of

    environment = None if config is None else environment_of(config)
    around = [path for path in paths if environment and is_within(environment, path.path)]
    wide = max(around, key=lambda path: len(path.path), default=None)
    if environment is None or wide is None or wide.path == environment:
        return []
    return [AllowedPath(environment, AccessMode.READ_ONLY, wide.target + environment[len(wide.path) :])]


def with_gpus(policy: SandboxPolicy | None, gpus: object) -> SandboxPolicy | None:
    """The policy with these GPUs added."""
    wanted = check_gpus(gpus)
    if wanted is None:
        return policy
    policy = policy or DEFAULT_POLICY
    known = policy.gpus
    both = "all" if "all" in (wanted, known) else tuple({*wanted, *(known or ())})
    return replace(policy, gpus=both)


def with_limits(policy: SandboxPolicy | None, limits: object) -> SandboxPolicy | None:
    """The policy with these limits added; the smaller of two applies."""
    if limits is None:
        return policy
    added, policy = check_kind("limits", limits, Limits), policy or DEFAULT_POLICY
    return replace(policy, limits=added.cap_with(policy.limits or Limits()))
