"""Launcher: from a program to its result under one enforcer. What is the same for every run is decided once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache, partial

from warmcell.backends.process.egress import Egress
from warmcell.backends.process.job import BUILD_POLICY, MOST_SENT, Launch, job_for, prelude_for, warm_worker
from warmcell.backends.process.world import PreparedWorld, RememberedWorlds, World, world_for
from warmcell.core.errors import EnforcerFailed, ExecutionTimeout, InvalidRequest, MemoryExceeded, PolicyViolation
from warmcell.core.records import dataclass, replace
from warmcell.core.types import MIB, EffectiveLimits, Enforced, ExecResult
from warmcell.enforcers.pinned import pin, pinned_paths
from warmcell.languages.config import ProcessConfig
from warmcell.lifetime.cleanup import Cleanup
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.held_directories import has_abandoned
from warmcell.lifetime.ownership import Lock
from warmcell.lifetime.scarcity import scarcity
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.places import WORK_DIR, is_within
from warmcell.policy.resolve import EffectivePolicy, ResolvedPath, resolve
from warmcell.pool.pool import CellKind, Pool
from warmcell.runner.cell import Cell, CellLost
from warmcell.runner.cgroup_parent import group_parent, host_capabilities
from warmcell.runner.cgroups import GroupLimits
from warmcell.runner.denials import DenialCollector
from warmcell.runner.not_started import JobUnread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import ExitStack

    from warmcell.backends.process.builds import Artefacts
    from warmcell.backends.process.live import LiveCage
    from warmcell.backends.process.live_making import LiveTerms
    from warmcell.backends.process.live_program import LiveProgram
    from warmcell.core.contracts import SandboxEnforcer
    from warmcell.lifetime.run import Run
    from warmcell.net.rules.fetch_policy import FetchPolicy

_ATTEMPTS = 3
#: What a run needs as soon as it has begun, since its time is measured: a command loads it while its cell is made.
_load_ending = partial(__import__, "warmcell.backends.process.ending")


@dataclass(frozen=True, slots=True)
class _Begun:
    """A run whose guest has its job, and what goes with its end."""

    cleanup: Cleanup
    cell: Cell
    denials: DenialCollector


class Launcher:
    """Shared by all runs of a backend. Enforcer and paths are settled when the backend is made."""

    def __init__(
        self,
        config: ProcessConfig,
        enforcer: str | SandboxEnforcer | None,
        policy: SandboxPolicy,
        fetch_policy: FetchPolicy | None,
        audit: Callable[[str], None] | None = None,
        work_path: str = WORK_DIR,
    ) -> None:
        self._config = config
        self._work_path = work_path
        self._asked_for = enforcer
        self._proved: SandboxEnforcer | None = None
        self._policy = policy
        self._paths: tuple[ResolvedPath, ...] | PolicyViolation = _pinned_or_why_not(policy)
        if self._paths:
            from warmcell.backends.process.named_programs import check_programs

            check_programs(config, self._paths)
        if fetch_policy is not None and policy.network_rules:
            raise PolicyViolation("both the policy and the fetch policy name domains", hint="put all rules into one")
        self._has_fetch_policy = fetch_policy is not None
        self.egress = Egress(fetch_policy or policy.network_rules, audit)
        _sweep_leftovers()
        self._artefacts: Artefacts | None = None
        self._unshared = os.urandom(16).hex()
        self._group_parent = group_parent()
        self.pool = Pool(config.pool_min, config.pool_size, self._group_parent)
        if config.pool_size:
            _load_ending()  # cells may be ready, and then there is no time for it
        self._worlds = RememberedWorlds()
        self._lock = Lock()

    @property
    def enforcer(self) -> SandboxEnforcer | None:
        """The one in use; "auto" becomes the best that works here, or an error."""
        if self._asked_for is None:
            return None
        if self._proved is None:  # looked up twice by two threads is better than a lock that a fork finds held
            from warmcell.enforcers.registry import proved_enforcer

            self._proved = proved_enforcer(self._asked_for)
        return self._proved

    @property
    def has_wrapper(self) -> bool:
        """Whether another program stands around the guest: what exec says then is about that program."""
        return self.enforcer is not None and self._effective(EffectiveLimits(), ()).isolation == "none"

    def describe(self) -> Enforced:
        """What would be enforced for a run under this policy."""
        return self._effective(EffectiveLimits(), ()).enforced

    @property
    def _enforcer_name(self) -> str | None:
        return self.enforcer.name if self.enforcer is not None else None

    def _effective(self, limits: EffectiveLimits, extra: tuple[ResolvedPath, ...]) -> EffectivePolicy:
        if isinstance(self._paths, PolicyViolation):
            raise self._paths
        paths = (*self._paths, *extra)
        host, enforcer = host_capabilities(), self._enforcer_name
        effective = resolve(self._policy, paths, limits, host, enforcer, self._has_fetch_policy)
        return effective if self._work_path == WORK_DIR else replace(effective, work=self._work_path)

    def _effective_build(self, limits: EffectiveLimits, out: tuple[ResolvedPath, ...]) -> EffectivePolicy:
        """Nothing of this backend's policy: what is built here is run by others (see `builds`)."""
        return resolve(BUILD_POLICY, out, limits, host_capabilities(), self._enforcer_name)

    @property
    def _world_of_builds(self) -> str | None:
        """What a compiler sees is known of our own classes; two enforcers of others may share no more than a name."""
        enforcer = self.enforcer
        if enforcer is None or type(enforcer).__module__.startswith("warmcell."):
            return self._enforcer_name
        return f"{enforcer.name} {self._unshared}"

    def run(self, launch: Launch) -> ExecResult:
        """Builds first where the language needs it, then runs; raises what the end of the run calls for."""
        try:
            if launch.program.build is None:
                return self._run_once(launch)
            from contextlib import ExitStack

            with ExitStack() as cleanup:
                built = self._built_and_told(launch, cleanup)
                return built if isinstance(built, ExecResult) else self._run_once(built)
        except OSError as error:
            raise host_failure(error) from error

    def _built_and_told(self, launch: Launch, cleanup: ExitStack) -> Launch | ExecResult:
        """Nobody hears a compiler, unless its words turn out to be the outcome."""
        if launch.listener is None:
            return self._built(launch, cleanup)
        from warmcell.runner.listening import tell_whole

        try:
            built = self._built(launch, cleanup)
        except (ExecutionTimeout, MemoryExceeded) as ended:
            tell_whole(launch.listener, ended.result)
            raise
        tell_whole(launch.listener, built if isinstance(built, ExecResult) else None)
        return built

    def build(self, launch: Launch, cleanup: ExitStack) -> Launch | ExecResult:
        """What can be run, many times, until `cleanup`; or the words of the compiler that refused it.

        A language without a compiler looks at the text, as far as it can without running it.
        """
        try:
            launch = replace(launch, program=launch.program.ahead or launch.program)
            return self._checked(launch) if launch.program.build is None else self._built(launch, cleanup)
        except OSError as error:
            raise host_failure(error) from error

    def _checked(self, launch: Launch) -> Launch | ExecResult:
        self._effective(launch.limits, ())
        check = launch.program.check
        if check is None:
            return launch
        from warmcell.backends.process.building import bare

        program = check() if callable(check) else check
        result = self._run_once(replace(bare(launch), program=program, files={}))
        return launch if result.ok else result

    def _built(self, launch: Launch, cleanup: ExitStack) -> Launch | ExecResult:
        self._effective(launch.limits, ())  # what cannot be had is refused before anything is compiled
        from warmcell.backends.process.building import compiling
        from warmcell.backends.process.builds import Artefacts, keyed

        with self._lock:
            artefacts = self._artefacts = self._artefacts or Artefacts()
        limits = self._config.limits_of_builds
        build = keyed(launch.program, self._world_of_builds, limits).beside(launch.files)
        spent, directory = 0.0, artefacts.find(build, cleanup)
        if directory is None:
            with artefacts.workshop() as workshop:
                result = self._run_once(compiling(replace(launch, limits=limits), build, workshop))
                if not result.ok:
                    return result
                spent, directory = result.duration, artefacts.keep(build, workshop, cleanup)
            if spent >= launch.timeout:
                raise ExecutionTimeout(launch.timeout, phase="build")
        program = replace(launch.program, build=None, files={})
        return replace(launch, program=program, artefact=os.path.join(directory, build.artefact), spent=spent)

    def _run_once(self, launch: Launch) -> ExecResult:
        if launch.artefact:
            from warmcell.backends.process.building import with_artefact

            launch = with_artefact(launch)
        if not launch.files and not launch.fetch_files:
            return self._run_in_cell(launch)
        from contextlib import ExitStack

        from warmcell.workspace.run_directory import RunDirectory, check_room

        self._refuse_taken_work()
        check_room(launch.files, launch.limits.disk_mb)
        if not launch.fetch_files and not self._needs_directory(launch.files):
            return self._run_in_cell(launch)
        with ExitStack() as cleanup:
            directory = RunDirectory(launch.files, cleanup)
            work = pin(directory.path, WORK_DIR, writable=True)
            launch = replace(launch, files={}, extra_paths=(*launch.extra_paths, work))
            return directory.around(lambda: self._run_in_cell(launch), launch.fetch_files)

    def _needs_directory(self, files: Mapping[str, bytes]) -> bool:
        """What is sent goes into any cell that waits; but not through a wrapper, and not as fast as a mount is made."""
        return sum(map(len, files.values())) > MOST_SENT or self.has_wrapper

    def _refuse_taken_work(self) -> None:
        """What the policy shows there is the caller's own, and no place for a request to write to."""
        if any(is_within(path.target, self._work_path) for path in self._policy.allowed_paths):
            hint = "put them into that directory, or show it at another place"
            raise InvalidRequest(
                "the policy shows a directory of its own at the work directory", field="files", hint=hint
            )

    def _run_in_cell(self, launch: Launch) -> ExecResult:
        """In another one where somebody ended the first before it had read its job."""
        try:
            return self._run_in_one_cell(launch)
        except JobUnread:
            if isinstance(launch.stdin, int):  # what was read of the caller's is gone
                raise
        return self._run_in_one_cell(launch)

    def _run_in_one_cell(self, launch: Launch) -> ExecResult:
        world = self._world(launch)
        begin = partial(self._begun, launch, world)
        begun = scarcity.retried(begin, launch.run, self._config.queue_timeout, own=self.pool)
        with begun.cleanup:
            from warmcell.backends.process.ending import result_of

            return result_of(launch, world, begun.cell, begun.denials, self.pool.linger)

    def _begun(self, launch: Launch, world: World) -> _Begun:
        """All that a run opens; nothing is left open where it fails."""
        cleanup = Cleanup()
        self.pool.begin()
        cleanup.callback(self.pool.done)
        try:
            prepared = world.prepare(cleanup)
            denials = DenialCollector()
            return _Begun(cleanup, self._started(launch, world, prepared, denials, cleanup), denials)
        except BaseException:
            cleanup.close()
            raise

    def _started(
        self, launch: Launch, world: World, prepared: PreparedWorld, denials: DenialCollector, cleanup: Cleanup
    ) -> Cell:
        """A cell that has its job. One that died while it waited has run nothing, so another takes its place."""
        kind = self._kind(launch, world, prepared)
        for _ in range(_ATTEMPTS):
            cell = self.pool.lease(kind, launch.run, _load_ending)
            cleanup.callback(cell.close)
            way_out = self.egress.open(cell, denials.add, cleanup)
            policy = BUILD_POLICY if launch.is_build else self._policy
            job = job_for(launch, world, prepared.directories, way_out, policy)
            try:
                cell.start(job, launch.run)
                return cell
            except CellLost:
                continue
        raise EnforcerFailed(world.zygote.enforcer, "cells die before they can be used")

    def live_cage(self, limits: EffectiveLimits, terms: LiveTerms, run: Run) -> LiveCage:
        """A cell that stays, until the caller closes it or it ends by itself."""
        from warmcell.backends.process.live_making import begun

        world = self._live_world(limits, terms.shown)
        begin = partial(begun, world, self._live_kind(limits, world), self.egress, self.pool, terms, run)
        try:
            return scarcity.retried(begin, run, self._config.queue_timeout, own=self.pool)
        except OSError as error:
            raise host_failure(error, "start the live cage") from error

    def live_program(self, launch: Launch) -> LiveProgram | ExecResult:
        """What is to be started in a live cage, built first where the language needs it; or the compiler's words."""
        from warmcell.backends.process.live_program import live_program

        try:
            if launch.program.build is None:
                return live_program(launch)
            from contextlib import ExitStack

            with ExitStack() as cleanup:
                built = self._built(launch, cleanup)
                return built if isinstance(built, ExecResult) else live_program(built)
        except OSError as error:
            raise host_failure(error) from error

    def _live_world(self, limits: EffectiveLimits, shown: tuple[str, ...]) -> World:
        from warmcell.backends.process.live_making import LiveWorld, check

        effective = self._effective(limits, ())
        check(effective)
        return LiveWorld(effective, self._config, shown)

    def _live_kind(self, limits: EffectiveLimits, world: World) -> CellKind:
        # Without one more for the agent: it is one of them.
        group = GroupLimits(limits.memory_mb * MIB, limits.processes, limits.cpus) if self._group_parent else None
        with Cleanup() as cleanup:
            plan = world.prepare(cleanup).plan
        return CellKind(world.zygote, plan, group, is_pooled=False, has_keeper=False, execs=False)

    def _world(self, launch: Launch) -> World:
        """The world for this kind of run, remembered where it is not for this run alone."""
        program = launch.program
        key = (launch.limits, program.runtime_paths, launch.is_build, program.worker)
        world = None if launch.extra_paths else self._worlds.find(key)
        if world is None:
            decide = self._effective_build if launch.is_build else self._effective
            effective = decide(launch.limits, launch.extra_paths)
            world = world_for(effective, self._config, program, self.enforcer)
            if not launch.extra_paths:
                self._worlds.keep(key, world)
        return world

    def _kind(self, launch: Launch, world: World, prepared: PreparedWorld) -> CellKind:
        """Of runs in the warm interpreter, which are most, all have the same where they have the same world."""
        warm = warm_worker(launch, world)
        if warm != "python" or not world.is_shared:
            return self._kind_for(launch, world, prepared, warm)
        if world.python_kind is None:
            world.python_kind = self._kind_for(launch, world, prepared, warm)
        return world.python_kind

    def _kind_for(self, launch: Launch, world: World, prepared: PreparedWorld, warm: str | None) -> CellKind:
        limits = launch.limits
        most_processes = limits.processes + (1 if world.has_keeper else 0)
        group = GroupLimits(limits.memory_mb * MIB, most_processes, limits.cpus) if self._group_parent else None
        return CellKind(
            world.zygote,
            prepared.plan,
            group,
            is_pooled=world.is_shared and not launch.extra_paths,
            has_keeper=world.has_keeper,
            execs=warm != "python",
            is_program=warm is None and "/" in launch.program.argv[0],
            prelude=prelude_for(launch, world) if warm == "node" else None,
        )

    def close(self) -> None:
        self.pool.close()
        if self._artefacts is not None:
            self._artefacts.close()


@cache
def _sweep_leftovers() -> None:
    """What killed programs of this user left. Once in a process; the remover is loaded where there is something."""
    if has_abandoned():
        from warmcell.workspace.private_directory import sweep_once

        sweep_once()


def _pinned_or_why_not(policy: SandboxPolicy) -> tuple[ResolvedPath, ...] | PolicyViolation:
    """Settled when the backend is made; told when it is used."""
    try:
        return pinned_paths(policy)
    except PolicyViolation as refused:
        return refused
