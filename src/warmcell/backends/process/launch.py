"""Launcher: from a program to its result under one enforcer. What is the same for every run is decided once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from warmcell.backends.process.builds import Artefacts
from warmcell.backends.process.egress import Egress
from warmcell.backends.process.settings import PlaceFor, Setting, WrappedSetting, setting_for
from warmcell.cage.linux.cgroups import GroupLimits
from warmcell.core.errors import EnforcerFailed, ExecutionTimeout, PolicyViolation
from warmcell.core.records import dataclass, replace
from warmcell.core.types import MIB, Denial, EffectiveLimits, Enforced, ExecResult
from warmcell.enforcers import probe
from warmcell.enforcers.pinned import pin, pinned_paths
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program import Program
from warmcell.lifetime.run import Run
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import EffectivePolicy, ResolvedPath, resolve
from warmcell.pool.pool import CellKind, Pool
from warmcell.runner.cell import Cell, CellLost
from warmcell.runner.denials import explain
from warmcell.runner.outcome import KernelUsage, Terms, judge
from warmcell.runner.streams import Pump

if TYPE_CHECKING:
    from warmcell.net.types import FetchPolicy

_ATTEMPTS = 3
_MOST_DENIALS = 64


@dataclass(frozen=True, slots=True)
class Launch:
    """One run as it was asked for."""

    program: Program
    env: Mapping[str, str]
    #: Bytes, or a descriptor to pass on.
    stdin: bytes | int
    timeout: float
    deadline: float
    limits: EffectiveLimits
    run: Run
    #: More of the host for this run: a build's output directory, an artefact.
    extra_paths: tuple[ResolvedPath, ...] = ()
    #: Compilers need processes of their own, whatever the program may do.
    is_build: bool = False


class Told:
    """What a run was refused: each thing once, and not more of them than anybody reads. Told from several threads."""

    def __init__(self) -> None:
        self._denials: dict[Denial, None] = {}

    def add(self, denial: Denial) -> None:
        if len(self._denials) < _MOST_DENIALS:
            self._denials.setdefault(denial)

    def all(self) -> list[Denial]:
        return list(self._denials)


class Launcher:
    """Shared by all runs of a backend. Enforcer and paths are settled when the backend is made."""

    def __init__(
        self,
        config: ProcessConfig,
        enforcer: str | None,
        policy: SandboxPolicy,
        fetch_policy: FetchPolicy | None,
        audit: Callable[[str], None] | None = None,
    ) -> None:
        self._config = config
        self._asked_for = enforcer
        self._proved: str | None = None
        self._policy = policy
        self._paths: tuple[ResolvedPath, ...] | PolicyViolation = _pinned_or_why_not(policy)
        if fetch_policy is not None and policy.network_rules:
            raise PolicyViolation("both the policy and the fetch policy name domains", hint="put all rules into one")
        self._has_fetch_policy = fetch_policy is not None
        self.egress = Egress(fetch_policy or policy.network_rules, audit)
        self._artefacts = Artefacts()
        self._home = probe.cgroup_home()
        self._pool = Pool(config.pool_min, config.pool_size, self._home)
        self._settings: dict[object, Setting] = {}

    @property
    def enforcer(self) -> str | None:
        """The name of the one in use; "auto" becomes the best that works here, or an error."""
        if self._asked_for is None:
            return None
        if self._proved is None:  # looked up twice by two threads is better than a lock that a fork finds held
            self._proved = _proved_enforcer(self._asked_for)
        return self._proved

    def describe(self) -> Enforced:
        """What would be enforced for a run under this policy."""
        return self._effective(EffectiveLimits(), ()).enforced

    def _effective(self, limits: EffectiveLimits, extra: tuple[ResolvedPath, ...]) -> EffectivePolicy:
        if isinstance(self._paths, PolicyViolation):
            raise self._paths
        host = probe.measure()
        return resolve(self._policy, (*self._paths, *extra), limits, host, self.enforcer, self._has_fetch_policy)

    def run(self, launch: Launch) -> ExecResult:
        """Builds first where the language needs it, then runs; raises what the end of the run calls for."""
        build = launch.program.build
        if build is None:
            return self._run_once(launch)
        with ExitStack() as cleanup:
            artefact = self._artefacts.find(build)
            if artefact is None:
                workshop = cleanup.enter_context(self._artefacts.workshop())
                compiler = replace(launch.program, argv=build.argv, build=None, worker=None)
                out = pin(workshop, "/out", writable=True)
                result = self._run_once(replace(launch, program=compiler, extra_paths=(out,), is_build=True, stdin=b""))
                if not result.ok:
                    return result
                artefact = self._artefacts.keep(build, workshop)
            if launch.deadline <= time.monotonic():
                raise ExecutionTimeout(launch.timeout)
            program = replace(launch.program, build=None, files={})
            return self._run_once(replace(launch, program=program, extra_paths=(pin(artefact, "/out"),)))

    def _run_once(self, launch: Launch) -> ExecResult:
        setting = self._setting(launch)
        with ExitStack() as cleanup:
            place = setting.place(cleanup)
            told = Told()
            cell = self._started(setting, place, launch, told, cleanup)
            started = time.monotonic()
            limits = launch.limits
            cancel = cleanup.enter_context(launch.run.descriptor())
            pump = Pump(
                cell, launch.stdin, limits.output_bytes, launch.deadline, cancel, limits.cpu_seconds, self._pool.linger
            )
            end = pump.run(started)
            cell.close()
            launch.run.check()
            kernel = _kernel_usage(cell)
            targets = tuple(bind.target for bind in setting.visible)
            for denial in explain(end, kernel, limits, targets):
                told.add(denial)
            terms = Terms(
                launch.timeout, limits.memory_mb, setting.effective.enforced, isinstance(setting, WrappedSetting)
            )
            return judge(end, terms, kernel, told.all())

    def _started(self, setting: Setting, place: PlaceFor, launch: Launch, told: Told, cleanup: ExitStack) -> Cell:
        """A cell that has its job. One that died while it waited has run nothing, so another takes its place."""
        for _ in range(_ATTEMPTS):
            cleanup.callback(self._pool.done)
            cell = self._pool.lease(self._kind(setting, place, launch))
            cleanup.callback(cell.close)
            way_out = self.egress.open(cell, told.add, cleanup)
            with suppress(CellLost):
                cell.start(setting.job(launch, place, way_out), tells_init=setting.concerns_init)
                return cell
        raise EnforcerFailed(self.enforcer or "process", "cells die before they can be used")

    def _setting(self, launch: Launch) -> Setting:
        """The plan for this kind of run, remembered, since most runs of a backend are alike."""
        program = launch.program
        key = (launch.limits, program.runtime_paths, launch.extra_paths, launch.is_build, program.worker)
        setting = self._settings.get(key)
        if setting is None:
            effective = self._effective(launch.limits, launch.extra_paths)
            if launch.is_build:
                effective = replace(effective, allow_spawn=True)
            setting = setting_for(effective, self._policy, self._config, program)
            if not launch.extra_paths:
                self._settings[key] = setting
        return setting

    def _kind(self, setting: Setting, place: PlaceFor, launch: Launch) -> CellKind:
        limits = launch.limits
        most_processes = limits.processes + (1 if setting.has_keeper else 0)
        group = GroupLimits(limits.memory_mb * MIB, most_processes, limits.cpus) if self._home else None
        is_pooled = place.is_shared and not launch.extra_paths
        execs = setting.warm_worker(launch) != "python"
        return CellKind(
            setting.zygote, place.plan, group, is_pooled, setting.has_keeper, execs, setting.prelude(launch)
        )

    def close(self) -> None:
        self._pool.close()

    @property
    def pool(self) -> Pool:
        return self._pool


def _proved_enforcer(name: str) -> str:
    from warmcell.enforcers.registry import get_enforcer

    if name == "auto":
        return get_enforcer().name
    enforcer = get_enforcer(name)
    enforcer.probe()
    return enforcer.name


def _kernel_usage(cell: Cell) -> KernelUsage:
    used = cell.group_usage
    if used is None:
        return KernelUsage()
    return KernelUsage(
        used.peak_memory_bytes, used.cpu_seconds, used.memory_kills, used.process_refusals, used.outside_kills
    )


def _pinned_or_why_not(policy: SandboxPolicy) -> tuple[ResolvedPath, ...] | PolicyViolation:
    """Settled when the backend is made; told when it is used."""
    try:
        return pinned_paths(policy)
    except PolicyViolation as refused:
        return refused
