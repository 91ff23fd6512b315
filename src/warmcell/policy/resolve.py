"""Resolves a policy against the host's capabilities into an effective policy, or refuses it. Pure module.

Nothing is weakened: what cannot be enforced on this host is an error with the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from warmcell.core.errors import EnforcerUnavailable, PolicyViolation
from warmcell.core.records import dataclass, replace
from warmcell.core.request_checks import check_kind
from warmcell.core.types import EffectiveLimits, Enforced, EnforcedLimits, Limits
from warmcell.policy.enforcer_support import check_supported
from warmcell.policy.model import NetworkRule, SandboxPolicy
from warmcell.policy.places import WORK_DIR, find_narrowing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.policy.gpu import GpuDriver, GpuGrant

#: The meaning of `policy=None`: nothing of the host, processes allowed.
DEFAULT_POLICY = SandboxPolicy(allow_process_spawn=True)

#: Without a mount namespace, Landlock must be able to restrict truncation (ABI 3).
_OLDEST_LANDLOCK = 3

#: The system calls that every class needs, the bare one included.
_ALWAYS_NEEDED = ("pidfd_send_signal", "pidfd_open", "close_range")

NATIVE, LANDLOCK = "native", "landlock"


def check_policy(policy: object) -> SandboxPolicy:
    hint = "SandboxPolicyBuilder()....build() makes one"
    return DEFAULT_POLICY if policy is None else check_kind("policy", policy, SandboxPolicy, hint)


@dataclass(frozen=True, slots=True)
class HostCapabilities:
    """Each capability is set only if it was tried and worked; `reasons` says why others are missing."""

    user_namespaces: bool = False
    landlock_abi: int = 0
    seccomp: bool = False
    cgroup: str | None = None
    #: Whether that cgroup has the cpu controller, for `Limits(cpus=...)`.
    cpu_share: bool = False
    #: RLIMIT_NPROC counts per user namespace, not per user of the whole host (Linux 5.14).
    process_limit_per_namespace: bool = False
    #: System calls that the cage needs and that are not available here.
    missing_calls: tuple[str, ...] = ()
    #: (name, reason, remedy)
    reasons: tuple[tuple[str, str, str], ...] = ()

    def reason(self, name: str) -> str:
        return next((what for key, what, _ in self.reasons if key == name), "not available on this host")

    def remedy(self, name: str) -> str:
        return next((remedy for key, _, remedy in self.reasons if key == name), "")


@dataclass(frozen=True, slots=True)
class HostLayout:
    """The host's system directories and the links between them, which the guest sees unchanged."""

    directories: tuple[str, ...] = ("/usr",)
    symlinks: tuple[tuple[str, str], ...] = ()
    #: Files of /etc for TLS, locale and the dynamic loader: (host path, guest path).
    etc: tuple[tuple[str, str], ...] = ()
    #: Devices of `DEVICES` that this host lacks.
    missing_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """An allowed path whose links were resolved when the policy was created."""

    source: str
    target: str
    writable: bool
    identity: str
    #: Not empty: the guest sees an overlay whose files report these devices; its writes go to the source.
    overlay_devices: tuple[int, ...] = ()
    #: Whether all that it contains counts as disk use, not only what the guest adds.
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class ImageRoot:
    """An image as the root: its layers, lowest first, the user inside, and its configuration."""

    layers: tuple[ResolvedPath, ...]
    uid: int
    gid: int
    #: The user's home directory, or "" if the image has none.
    home: str
    env: Mapping[str, str]
    #: The initial directory of programs; "": the work directory.
    work_dir: str = ""
    #: Directories that the image's configuration names but the image lacks.
    missing: tuple[str, ...] = ()
    #: A host directory with "upper" and "work" that keeps the guest's writes, except below /dev. None: they are
    #: discarded after the run.
    upper: ResolvedPath | None = None


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """The policy as it will be enforced, with the mechanisms."""

    isolation: str
    network: str
    network_rules: tuple[NetworkRule, ...]
    paths: tuple[ResolvedPath, ...]
    allow_spawn: bool
    env: Mapping[str, str]
    limits: EffectiveLimits
    uses_cgroup: bool
    enforced: Enforced
    #: The guest's path of the work directory, in which programs start.
    work: str = WORK_DIR
    #: The image that is the guest's root; None: the host's system, read-only.
    image: ImageRoot | None = None
    gpu: GpuGrant | None = None
    #: Whether guests may trace their own processes.
    allow_tracing: bool = False


def effective_limits(
    policy: SandboxPolicy, requested: Limits | None = None, memory_mb: int | None = None
) -> EffectiveLimits:
    """Each limit is the smallest of the given values, or the default. `memory_mb`: the request's `memory_limit_mb`."""
    if requested is None and memory_mb is None and policy.limits is None:  # the usual case
        return _DEFAULT_LIMITS
    by_memory = None if memory_mb is None else Limits(memory_mb=memory_mb)
    given = [limits for limits in (requested, by_memory, policy.limits) if limits is not None]
    asked = reduce(Limits.cap_with, given)
    return EffectiveLimits(**{name: value for name in asked.__slots__ if (value := getattr(asked, name)) is not None})


_DEFAULT_LIMITS = EffectiveLimits()


def limits_in_force(enforced: Enforced) -> EnforcedLimits:
    """Which limits have a mechanism, for `capabilities()`."""
    return EnforcedLimits(
        timeout=True,
        memory=enforced.memory is not None,
        network_isolation=enforced.network is not None,
        filesystem_read_isolation=enforced.filesystem_read is not None,
        filesystem_write_isolation=enforced.filesystem_write is not None,
        environment_isolation=enforced.environment is not None,
        process_limit=enforced.processes is not None,
        disk_limit=enforced.disk is not None,
        output_limit=True,
        cpu=enforced.cpu is not None,
    )


def resolve(
    policy: SandboxPolicy,
    paths: tuple[ResolvedPath, ...],
    limits: EffectiveLimits,
    host: HostCapabilities,
    enforcer: str | None,
    has_egress: bool = False,
    gpu_driver: GpuDriver | None = None,
) -> EffectivePolicy:
    """Decide which mechanism enforces what, or refuse. `gpu_driver` is required if the policy has GPUs."""
    check_supported(enforcer, policy, has_egress)
    if enforcer == NATIVE:
        _require_native(host)
    elif enforcer == LANDLOCK:
        _require_landlock(host)
        _refuse_narrowed(paths)
    _refuse(enforcer or "process", host, next((name for name in host.missing_calls if name in _ALWAYS_NEEDED), None))
    if limits.cpus is not None and not host.cpu_share:
        raise EnforcerUnavailable(
            enforcer or "process",
            "a share of the processors needs a cgroup with the cpu controller, which is not available here",
            hint="leave Limits(cpus=...) out, run as root, or run below a delegated cgroup",
        )
    isolation = {NATIVE: "namespaces", LANDLOCK: "landlock"}.get(enforcer or "", "none")
    if policy.allow_network and has_egress:
        raise PolicyViolation(
            "allow_network opens everything and would make the fetch policy meaningless",
            hint="use either allow_network() or fetch_policy=, not both",
        )
    if policy.allow_network or isolation == "none":
        network = "host"
    else:
        network = "proxy" if policy.network_rules or has_egress else "none"
    gpu = None
    if policy.gpus is not None:
        from warmcell.policy.gpu import grant_gpus

        gpu = grant_gpus(policy.gpus, gpu_driver, enforcer or "process", limits.gpu_memory_mb)
    enforced = _describe_enforced(policy, paths, host, enforcer, isolation, network)
    return EffectivePolicy(
        isolation=isolation,
        network=network,
        network_rules=policy.network_rules,
        paths=paths,
        allow_spawn=policy.allow_process_spawn if isolation != "none" else True,
        env=policy.env if gpu is None else {**gpu.env, **policy.env},
        limits=limits,
        uses_cgroup=host.cgroup is not None,
        enforced=enforced if gpu is None else _with_gpu(enforced, gpu, limits),
        gpu=gpu,
        allow_tracing=policy.allow_tracing,
    )


def _with_gpu(enforced: Enforced, gpu: GpuGrant, limits: EffectiveLimits) -> Enforced:
    """The isolation class gets its own name, because the guest can attack a driver in the kernel."""
    return replace(
        enforced,
        isolation_class=f"{enforced.isolation_class}+gpu",
        gpus=gpu.description,
        gpu_memory=None if limits.gpu_memory_mb is None else "supervisor (NVML)",
    )


def _require_native(host: HostCapabilities) -> None:
    missing = next((name for name in ("user_namespaces", "seccomp", "landlock_abi") if not getattr(host, name)), None)
    _refuse(NATIVE, host, missing or next(iter(host.missing_calls), None))


def _refuse(enforcer: str, host: HostCapabilities, missing: str | None) -> None:
    if missing is not None:
        raise EnforcerUnavailable(enforcer, host.reason(missing), hint=host.remedy(missing) or "see `warmcell doctor`")


def _require_landlock(host: HostCapabilities) -> None:
    _refuse(LANDLOCK, host, next((name for name in ("landlock_abi", "seccomp") if not getattr(host, name)), None))
    if host.landlock_abi < _OLDEST_LANDLOCK:
        raise EnforcerUnavailable(
            LANDLOCK,
            f"this kernel has version {host.landlock_abi} of Landlock, which cannot restrict truncation",
            hint="use the native enforcer, or Linux 6.2 or newer",
        )


def _refuse_narrowed(paths: tuple[ResolvedPath, ...]) -> None:
    """Landlock rules add up along a path: a rule below a directory cannot revoke what the directory allows."""
    pair = find_narrowing((path.source, path.writable) for path in paths)
    if pair is not None:
        raise EnforcerUnavailable(
            LANDLOCK,
            f"it cannot keep {pair[1]!r} read-only inside {pair[0]!r}",
            hint="use the native enforcer, or allow only the parts that may be written",
        )


def _describe_enforced(
    policy: SandboxPolicy,
    paths: tuple[ResolvedPath, ...],
    host: HostCapabilities,
    enforcer: str | None,
    isolation: str,
    network: str,
) -> Enforced:
    limits = host.cgroup or "supervisor"
    common = Enforced(
        enforcer=enforcer,
        timeout="supervisor",
        memory=limits,
        cpu=limits if limits == "supervisor" else f"{limits} + supervisor",
        processes=host.cgroup,
        open_files="rlimit per process",
        disk="supervisor + rlimit",
        output="supervisor",
        environment="supervisor",
    )
    if isolation == "namespaces":
        return _in_namespaces(common, paths, host, network)
    if isolation == "landlock":
        network_lock = None if network == "host" else "seccomp"
        return replace(
            common,
            isolation_class="landlock",
            network=network_lock,
            filesystem_read="Landlock",
            filesystem_write="Landlock",
            syscalls="seccomp",
        )
    if enforcer is None:
        return replace(common, isolation_class="process")
    return replace(
        common,
        isolation_class="process+sandbox",
        network=None if policy.allow_network else enforcer,
        filesystem_read=enforcer,
        filesystem_write=enforcer,
    )


def _in_namespaces(common: Enforced, paths: tuple[ResolvedPath, ...], host: HostCapabilities, network: str) -> Enforced:
    networks = {"none": "network namespace", "proxy": "network namespace + proxy", "host": None}
    has_writable = any(path.writable for path in paths)
    per_namespace = "rlimit per namespace" if host.process_limit_per_namespace else None
    return replace(
        common,
        isolation_class="process+sandbox",
        processes=host.cgroup or per_namespace,
        disk="sized tmpfs + supervisor" if has_writable else "sized tmpfs",
        network=networks[network],
        filesystem_read="mount namespace + Landlock",
        filesystem_write="mount namespace + Landlock",
        syscalls="seccomp",
    )
