"""What is fixed when a sandbox is made, what differs from one run to the next, and the policy that comes of it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from warmcell.core.errors import InvalidRequest
from warmcell.core.types import Limits
from warmcell.policy.model import AccessMode, AllowedPath, SandboxPolicy
from warmcell.policy.places import is_within
from warmcell.workspace.mount_points import WORK, MountPoint

if TYPE_CHECKING:
    from warmcell.backends.output_callbacks import Follow
    from warmcell.core.contracts import SandboxEnforcer
    from warmcell.languages.config import ProcessConfig
    from warmcell.net.rules.fetch_policy import FetchPolicy

#: Where guests find what was installed for them.
PACKAGES = "/packages"
#: Among them, out of Python's way; Node finds what is there from every directory.
NPM_PLACE, NODE_MODULES = ".npm", "/node_modules"
#: What holds for a sandbox whose caller gave no policy.
OWN_POLICY = SandboxPolicy(allow_process_spawn=True)
#: JSON in, JSON out: what a guest's `fetch` and `curl` ask the host.
FetchCall = Callable[[bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class GuestConfig:
    """All that is fixed when a sandbox is made. Nothing that a model fills in later can widen it."""

    work_dir: str
    is_work_writable: bool = True
    mounts: tuple[MountPoint, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    memory_limit_mb: int | None = None
    fuel: int | None = None
    policy: SandboxPolicy | None = None
    fetch: FetchCall | None = None
    fetch_policy: FetchPolicy | None = None
    process_config: ProcessConfig | None = None
    enforcer: str | SandboxEnforcer = "auto"
    idle_timeout: float | None = None
    #: Where the guest finds the work directory.
    work_path: str = WORK
    #: A directory of installed packages, for guests to read.
    packages: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What differs from one run to the next. `cwd` was checked: a directory of the workspace or a mount."""

    cwd: str = WORK
    stdin: str | bytes | None = None
    timeout: float = 30.0
    #: Who hears the run goes through its events with it.
    follow: Follow | None = None


def sandbox_policy(config: GuestConfig) -> SandboxPolicy:
    """The caller's policy with the workspace and the mounts added. Without one, processes are allowed, nothing else."""
    policy = config.policy or OWN_POLICY
    mode = AccessMode.READ_WRITE if config.is_work_writable else AccessMode.READ_ONLY
    paths = [AllowedPath(config.work_dir, mode, config.work_path)]
    for mount in config.mounts:
        if mount.guest_path != WORK:
            mode = AccessMode.READ_WRITE if mount.writable else AccessMode.READ_ONLY
            paths.append(AllowedPath(mount.host, mode, mount.guest_path))
    paths += _kept_from_writing(config.process_config, paths)
    if config.packages is not None:
        paths.append(AllowedPath(config.packages, AccessMode.READ_ONLY, PACKAGES))
        policy = replace(policy, env={"PYTHONPATH": PACKAGES, **policy.env})
        modules = os.path.join(config.packages, NPM_PLACE, "node_modules")
        if os.path.isdir(modules):
            paths.append(AllowedPath(modules, AccessMode.READ_ONLY, NODE_MODULES))
    return replace(policy, allowed_paths=(*policy.allowed_paths, *paths))


def _kept_from_writing(config: ProcessConfig | None, paths: Sequence[AllowedPath]) -> list[AllowedPath]:
    """A virtual environment whose interpreter is started outside, in a directory that guests may write: it is theirs
    to read only, or what they put into it would be run by our own processes.
    """
    from warmcell.languages.host_tools import environment_of

    environment = None if config is None else environment_of(config)
    around = [path for path in paths if environment and is_within(environment, path.path)]
    if environment is None or not around or max(around, key=lambda path: len(path.path)).path == environment:
        return []
    wide = max(around, key=lambda path: len(path.path))
    return [AllowedPath(environment, AccessMode.READ_ONLY, wide.target + environment[len(wide.path) :])]


def with_limits(policy: SandboxPolicy | None, limits: object) -> SandboxPolicy | None:
    """The policy with the sandbox's own limits in it; of two figures the smaller holds."""
    if limits is None:
        return policy
    if not isinstance(limits, Limits):
        raise InvalidRequest(f"must be Limits, not {type(limits).__name__}", field="limits")
    policy = policy or OWN_POLICY
    return replace(policy, limits=limits.capped_by(policy.limits or Limits()))


def check_process_settings(config: object, enforcer: object) -> None:
    """A sandbox always has a cage: the bare class is for `ProcessBackend`, by name."""
    from warmcell.languages.config import ProcessConfig

    if config is not None and not isinstance(config, ProcessConfig):
        raise InvalidRequest(f"must be a ProcessConfig, not {type(config).__name__}", field="config")
    if enforcer is None:
        raise InvalidRequest("a sandbox has one", field="enforcer", hint="'auto', a name, or a SandboxEnforcer")
