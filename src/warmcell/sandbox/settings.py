"""SandboxSettings: the arguments of `Sandbox` and `AsyncSandbox`, as one checked record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING

from warmcell.core.errors import InvalidRequest
from warmcell.core.request_checks import check_kind
from warmcell.core.types import EffectiveLimits, Limits, check_env, check_timeout
from warmcell.enforcers.registry import check_weaker
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import check_policy, effective_limits
from warmcell.sandbox.local.guest_config import with_gpus, with_limits
from warmcell.sandbox.local.guests import GuestFactory, make_guest, no_live_cage
from warmcell.workspace.mount_points import WORK, MountPoint, check_mounts
from warmcell.workspace.workspace import AnyPath

if TYPE_CHECKING:
    from warmcell.core.contracts import SandboxBackend
    from warmcell.enforcers.contract import SandboxEnforcer
    from warmcell.images import Image
    from warmcell.languages.config import ProcessConfig
    from warmcell.net import FetchPolicy


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """Fixed when a sandbox is made. Nothing that a model fills in later widens it."""

    #: A directory of the host; None: a private one that is removed with the sandbox.
    work_dir: AnyPath | None = None
    _: KW_ONLY
    #: A name, or a `ProcessBackend` whose configuration, enforcer and policy apply here too.
    backend: str | SandboxBackend = "process"
    mounts: Sequence[MountPoint] = ()
    env: Mapping[str, str] | None = None
    #: Seconds, for runs that give no timeout of their own.
    timeout: float = 30.0
    memory_limit_mb: int | None = None
    #: WASM instructions per run.
    fuel: int | None = None
    fetch_policy: FetchPolicy | None = None
    policy: SandboxPolicy | None = None
    config: ProcessConfig | None = None
    enforcer: str | SandboxEnforcer = "auto"
    #: "landlock": the weaker class to use where no cage can be built; `result.enforced` says so.
    allow_weaker: str | None = None
    #: What guests have for their root, in place of the host's system: a name in the image store, or an `Image`.
    image: str | Image | None = None
    #: The user in the image, such as "root"; None: the one that the image names.
    user: str | None = None
    limits: Limits | None = None
    #: "all", or the numbers of the GPUs that guests may use; added to the policy.
    gpus: str | Sequence[int] | None = None
    #: exec, sh and run go into the live cage of `spawn` too, and share its processes, /tmp and loopback.
    live: bool = False
    #: Seconds without a program after which the live cage ends.
    idle_timeout: float | None = None
    #: "/work", or "host": the guest sees the work directory at its path on the host.
    work_path: str = WORK
    #: Python sessions can be forked.
    forkable: bool = False
    #: False: `diff` is not available, and large directories start faster.
    track_changes: bool = True
    #: "ask": guests' changes of `work_dir` are kept apart until `commit`. "resume": the same, and it goes on with those
    #: that were kept; "keep": that, and what is not committed is kept when the sandbox closes.
    changes: str | None = None
    #: For tests.
    guest_factory: GuestFactory = make_guest

    def check(self) -> SandboxSettings:
        """The same settings in their final form. `InvalidRequest` names the first wrong one."""
        _check_process_settings(self.config, self.enforcer)
        _check_rules(self.policy, self.fetch_policy)
        check_weaker(self.allow_weaker, self.enforcer)
        policy = with_gpus(with_limits(self.policy, self.limits), self.gpus)
        for name in ("live", "forkable", "track_changes"):
            if not isinstance(value := getattr(self, name), bool):
                raise InvalidRequest(f"must be true or false, not {type(value).__name__}", field=name)
        _check_changes(self)
        if self.live and self.backend_name == "wasm":  # before a guest is made, which has directories and workers
            raise no_live_cage(self.backend_name)
        if self.user is not None and self.image is None:
            raise InvalidRequest("needs an image", field="user", hint="name an image, or leave it out")
        if self.forkable and self.work_path != WORK:
            reason = "a branch has a copy of the work directory, which cannot be at the same path of the host"
            raise InvalidRequest(reason, field="forkable", hint=f"leave work_path at {WORK!r}")
        return replace(
            self,
            mounts=check_mounts(self.mounts),
            env=check_env({} if self.env is None else self.env),
            timeout=check_timeout(self.timeout),
            memory_limit_mb=Limits(memory_mb=self.memory_limit_mb).memory_mb,
            policy=policy,
            idle_timeout=None if self.idle_timeout is None else check_timeout(self.idle_timeout, "idle_timeout"),
        )

    @property
    def backend_name(self) -> str:
        return self.backend if isinstance(self.backend, str) else getattr(self.backend, "name", "")

    @property
    def effective_limits(self) -> EffectiveLimits:
        """The limits of each run, and of the live cage as a whole."""
        return effective_limits(self.policy or SandboxPolicy(), memory_mb=self.memory_limit_mb)


def _check_process_settings(config: object, enforcer: object) -> None:
    """A sandbox always has a cage: only `ProcessBackend` can be made without one, by name."""
    from warmcell.languages.config import ProcessConfig

    if config is not None and not isinstance(config, ProcessConfig):
        raise InvalidRequest(f"must be a ProcessConfig, not {type(config).__name__}", field="config")
    if enforcer is None:
        raise InvalidRequest(
            "a sandbox needs an enforcer", field="enforcer", hint="'auto', a name, or a SandboxEnforcer"
        )


def _check_rules(policy: object, fetch_policy: object) -> None:
    check_policy(policy)
    if fetch_policy is not None:
        from warmcell.net.rules.fetch_policy import FetchPolicy

        check_kind("fetch_policy", fetch_policy, FetchPolicy, "FetchPolicy(allowed_domains=[...])")


def _check_changes(settings: SandboxSettings) -> None:
    if settings.changes is None:
        return
    if settings.changes not in ("ask", "resume", "keep"):
        raise InvalidRequest(f"must be 'ask', 'resume', 'keep' or None, not {settings.changes!r}", field="changes")
    if settings.work_dir is None:
        raise InvalidRequest("needs a directory of the host", field="changes", hint="pass work_dir=DIRECTORY")
    if settings.backend_name != "process":
        raise InvalidRequest("works only with the process backend", field="changes", hint="leave it or backend= out")
