"""PolicyResolver: resolves a backend's policy for its enforcer on this host."""

from __future__ import annotations

import os
import stat

from warmcell.core.errors import EnforcerUnavailable, InvalidRequest, PolicyViolation
from warmcell.core.records import replace
from warmcell.core.types import EffectiveLimits
from warmcell.enforcers.kernel_calls import kernel_version
from warmcell.enforcers.pin_paths import pin_paths
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.places import WORK_DIR, is_within
from warmcell.policy.resolve import EffectivePolicy, ImageRoot, ResolvedPath, resolve
from warmcell.runner.cgroup_parent import host_capabilities

TYPE_CHECKING = False
if TYPE_CHECKING:
    from warmcell.enforcers.contract import SandboxEnforcer
    from warmcell.languages.config import ProcessConfig
    from warmcell.policy.gpu import GpuDriver
    from warmcell.pool.zygote import Overlay

_OLDEST_FOR_IMAGES = (6, 6)
_USE_NATIVE = "use the native enforcer (enforcer='auto' or 'native')"

#: What a compiler may do, whatever the program that it builds may do. It consists of several processes.
BUILD_POLICY = SandboxPolicy(allow_process_spawn=True)


class PolicyResolver:
    """Paths are pinned when the backend is made; a path that cannot be pinned is reported when it is used."""

    def __init__(
        self,
        config: ProcessConfig,
        enforcer: str | SandboxEnforcer | None,
        policy: SandboxPolicy,
        work_path: str,
        has_fetch_policy: bool,
        allow_weaker: str | None = None,
        image: ImageRoot | None = None,
        overlay: Overlay | None = None,
    ) -> None:
        if allow_weaker is not None:
            from warmcell.enforcers.registry import check_weaker

            check_weaker(allow_weaker, enforcer)
        self._allow_weaker = allow_weaker
        self.policy = policy
        self._image = image
        self._requested = enforcer
        self._proved: SandboxEnforcer | None = None
        self._work_path = work_path
        self._has_fetch_policy = has_fetch_policy
        self._unshared = os.urandom(16).hex()
        self._paths: tuple[ResolvedPath, ...] | PolicyViolation
        #: Read-only paths in writable ones, which may be pinned again.
        self.narrow: dict[str, tuple[int, int, int]] = {}
        try:
            self._paths = pin_paths(policy)
            if overlay is not None:
                self._paths = tuple(
                    _replace_by_overlay(path, overlay) if path.target == work_path else path for path in self._paths
                )
        except PolicyViolation as refused:
            self._paths = refused
            return
        self.narrow = _find_narrow(self._paths)
        if self._paths:
            _check_programs(config, self._paths)

    @property
    def enforcer(self) -> SandboxEnforcer | None:
        """The enforcer in use. "auto" becomes the best one that works here, or an error."""
        if self._requested is None:
            return None
        if self._proved is None:  # two threads may both look it up; a lock could be held across a fork
            from warmcell.enforcers.registry import prove_enforcer

            self._proved = prove_enforcer(self._requested, self._allow_weaker)
        return self._proved

    def pin_again(self) -> object:
        """Pins what is read-only in a writable path and was replaced on the host, as git does with its configuration.

        The guest could write what lies there now if it were not read-only. Raises `PolicyViolation` if that is missing
        or another kind of file. Returns the same object while nothing changes.
        """
        if self.narrow and not isinstance(self._paths, PolicyViolation):
            paths = tuple(_pin_again(path, self.narrow.get(path.target)) for path in self._paths)
            if paths != self._paths:
                self._paths = paths
        return self._paths

    @property
    def has_wrapper(self) -> bool:
        """Whether the enforcer is a program around the guest, so that exec errors are about that program."""
        return self.enforcer is not None and self.resolve(EffectiveLimits()).isolation == "none"

    @property
    def build_scope(self) -> str | None:
        """Names what a compiler can see. Third-party enforcers are not shared: two may have the same name."""
        enforcer = self.enforcer
        if enforcer is None:
            return None
        is_ours = type(enforcer).__module__.startswith("warmcell.")
        return enforcer.name if is_ours else f"{enforcer.name} {self._unshared}"

    def resolve(self, limits: EffectiveLimits, extra_paths: tuple[ResolvedPath, ...] = ()) -> EffectivePolicy:
        """The backend's policy for a run with these limits, or the error that says what cannot be enforced."""
        if isinstance(self._paths, PolicyViolation):
            raise self._paths
        paths = (*self._paths, *extra_paths)
        effective = resolve(
            self.policy,
            paths,
            limits,
            host_capabilities(),
            self._enforcer_name,
            self._has_fetch_policy,
            _gpu_driver() if self.policy.gpus is not None else None,
        )
        if any(path.overlay_devices for path in paths) and effective.isolation != "namespaces":
            raise self._refusal("it cannot keep the changes to a directory apart")
        if self._image is not None:
            effective = self._with_image(effective, self._image)
        return effective if self._work_path == WORK_DIR else replace(effective, work=self._work_path)

    def _with_image(self, effective: EffectivePolicy, image: ImageRoot) -> EffectivePolicy:
        if effective.isolation != "namespaces":
            raise self._refusal("it cannot use an image as the root file system")
        if kernel_version() < _OLDEST_FOR_IMAGES:
            reason = "the writable layer of an image needs user attributes on tmpfs, which this kernel does not have"
            raise self._refusal(reason, hint="use Linux 6.6 or newer, or run without an image")
        return replace(effective, image=image)

    def _refusal(self, reason: str, hint: str = _USE_NATIVE) -> EnforcerUnavailable:
        return EnforcerUnavailable(self._enforcer_name or "process", reason, hint=hint)

    def resolve_build(self, limits: EffectiveLimits, extra_paths: tuple[ResolvedPath, ...]) -> EffectivePolicy:
        """Nothing of the backend's policy: what is built here is shared with others (see `building`)."""
        return resolve(BUILD_POLICY, extra_paths, limits, host_capabilities(), self._enforcer_name)

    @property
    def _enforcer_name(self) -> str | None:
        return self.enforcer.name if self.enforcer is not None else None


def _check_programs(config: ProcessConfig, paths: tuple[ResolvedPath, ...]) -> None:
    """Refuses a configured program that a guest could overwrite: such programs also run outside of cages."""
    if not any(path.writable for path in paths):
        return
    if not (config.python_path or config.node_path or config.rustc_path or config.preload):
        return
    from warmcell.languages.host_tools import check_out_of_reach

    def is_writable(program: str) -> bool:
        around = [path for path in paths if is_within(program, path.source)]
        return bool(around) and max(around, key=lambda path: len(path.source)).writable

    check_out_of_reach(config, is_writable)


def _find_narrow(paths: tuple[ResolvedPath, ...]) -> dict[str, tuple[int, int, int]]:
    """By target, kind and owner of what is read-only in a writable path and lies at the same place on the host."""
    found = {}
    wide = [path for path in paths if path.writable and not path.overlay_devices]
    for path in paths if wide else ():
        around = [one for one in wide if is_within(path.target, one.target)]
        if not path.writable and any(path.source == one.source + path.target[len(one.target) :] for one in around):
            found[path.target] = _kind_and_owner(os.lstat(path.source))
    return found


def _kind_and_owner(status: os.stat_result) -> tuple[int, int, int]:
    return stat.S_IFMT(status.st_mode), status.st_uid, status.st_gid


def _pin_again(path: ResolvedPath, known: tuple[int, int, int] | None) -> ResolvedPath:
    if known is None:
        return path
    try:
        status = os.lstat(path.source)
    except OSError:
        status = None
    if status is None or _kind_and_owner(status) != known:
        what = "was removed" if status is None else "has another kind or owner now"
        raise PolicyViolation(f"{path.target!r}, which guests may only read, {what}", hint="create the sandbox again")
    identity = f"{status.st_dev}:{status.st_ino}"
    return path if identity == path.identity else replace(path, identity=identity)


def _replace_by_overlay(path: ResolvedPath, overlay: Overlay) -> ResolvedPath:
    """The overlay was mounted from the pinned directory; its upper directory is where the disk limit applies."""
    return replace(path, source=overlay.upper, writable=True, identity="", overlay_devices=overlay.devices)


def _gpu_driver() -> GpuDriver | None:
    from warmcell.enforcers import gpus  # most policies have none

    return gpus.find_driver()


def check_work_path(work_path: str, policy: SandboxPolicy) -> None:
    if work_path != WORK_DIR and all(allowed.target != work_path for allowed in policy.allowed_paths):
        raise InvalidRequest(f"the policy shows nothing at {work_path!r}", field="work_path", hint="allow that path")
