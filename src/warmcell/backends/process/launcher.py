"""Launcher: carries out runs under one policy and enforcer. Decides once what all runs have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from warmcell.backends.process.cell_template import CellTemplate, TemplateCache, make_template
from warmcell.backends.process.egress import Egress
from warmcell.backends.process.guest_job import make_job, make_prelude, warm_worker
from warmcell.backends.process.launch import MAX_SENT_BYTES, Launch
from warmcell.backends.process.policy_resolver import BUILD_POLICY, PolicyResolver
from warmcell.core.errors import EnforcerFailed, InvalidRequest, PolicyViolation
from warmcell.core.light import Cleanup, on_error
from warmcell.core.records import replace
from warmcell.core.types import MIB, EffectiveLimits, ExecResult
from warmcell.languages.config import ProcessConfig
from warmcell.lifetime.descriptor_pressure import descriptor_pressure
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.held_directories import has_abandoned
from warmcell.lifetime.ownership import Lock
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.places import WORK_DIR, is_within
from warmcell.pool.pool import CELLS_HINT, Pool
from warmcell.pool.zygote import CellKind, Overlay
from warmcell.runner.cell import Cell, CellLost
from warmcell.runner.cgroup_parent import group_parent
from warmcell.runner.cgroups import GroupLimits
from warmcell.runner.denials import DenialCollector
from warmcell.runner.not_started import JobUnread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import ExitStack
    from typing import TypeVar

    from warmcell.backends.process.building import Builder
    from warmcell.backends.process.gpu_slots import GpuSlots
    from warmcell.backends.process.launch import LiveProgram
    from warmcell.backends.process.live import LiveCage
    from warmcell.backends.process.live_setup import LiveSetup
    from warmcell.backends.process.live_start import LiveOptions
    from warmcell.enforcers.contract import SandboxEnforcer
    from warmcell.languages.host_tools import HostTools
    from warmcell.lifetime.run import Run
    from warmcell.net.rules.fetch_policy import FetchPolicy
    from warmcell.policy.resolve import ImageRoot

    T = TypeVar("T")

_ATTEMPTS = 3
#: Loaded while a cell is made: the guest's time is measured as soon as it has its job.
_load_run_result = partial(__import__, "warmcell.backends.process.run_result")


class Launcher:
    """Shared by all runs of a backend."""

    def __init__(
        self,
        config: ProcessConfig,
        enforcer: str | SandboxEnforcer | None,
        policy: SandboxPolicy,
        fetch_policy: FetchPolicy | None,
        audit: Callable[[str], None] | None = None,
        work_path: str = WORK_DIR,
        allow_weaker: str | None = None,
        image: ImageRoot | None = None,
        overlay: Overlay | None = None,
    ) -> None:
        if fetch_policy is not None and policy.network_rules:
            raise PolicyViolation("both the policy and the fetch policy name domains", hint="put all rules into one")
        self._config = config
        self._work_path = work_path
        has_fetch_policy = fetch_policy is not None
        self._overlay = overlay
        self.resolver = PolicyResolver(
            config, enforcer, policy, work_path, has_fetch_policy, allow_weaker, image, overlay
        )
        self.egress = Egress(fetch_policy or policy.network_rules, audit)
        _sweep_leftovers()
        self._builder: Builder | None = None
        self._gpu_slots: GpuSlots | None = None
        self._group_parent = group_parent()
        self.pool = Pool(config.pool_min, config.pool_size, self._group_parent)
        if config.pool_size:
            _load_run_result()  # a ready cell leaves no time for it later
        self._templates = TemplateCache()
        #: Made with the first live cage, or that of a sibling.
        self.live_setup: LiveSetup | None = None
        self._lock = Lock()

    def run(self, launch: Launch) -> ExecResult:
        """Builds the program if its language needs it, then runs it. Raises if a limit ended it."""
        return self._build_and_use(launch, self._run_program)

    def _build_and_use(self, launch: Launch, use: Callable[[Launch], T]) -> T | ExecResult:
        """The compiler's result if that failed."""
        try:
            if launch.program.build is None:
                return use(launch)
            with Cleanup() as cleanup:
                built = self._get_builder(launch.limits).build_and_stream(launch, cleanup)
                return built if isinstance(built, ExecResult) else use(built)
        except OSError as error:
            raise host_failure(error) from error

    def _run_program(self, launch: Launch) -> ExecResult:
        """Puts the artefact and the files of a run in place, and runs it."""
        if launch.artefact:
            from warmcell.backends.process.building import attach_artefact

            launch = attach_artefact(launch)
        if launch.files or launch.fetch_files:
            return self._run_with_files(launch)
        return self._run_with_retry(launch)

    def _run_with_retry(self, launch: Launch) -> ExecResult:
        """Runs a second time if the first cell was killed before it had read its job: nothing has run then."""
        try:
            return self._run_once(launch)
        except JobUnread:
            if isinstance(launch.stdin, int):  # part of the caller's input may have been read
                raise
        if launch.program.worker == "image-python":  # it may not start at all, and then it says why
            launch = replace(launch, program=replace(launch.program, worker=None))
        return self._run_once(launch)

    def _run_once(self, launch: Launch) -> ExecResult:
        """A run in four steps: find its template, acquire a cell, give it the job, await its result."""
        template = self._find_template(launch)
        denials = DenialCollector()
        with Cleanup() as slots, Cleanup() as cleanup:
            self._acquire_gpus(template, launch.run, slots)

            def begin(template: CellTemplate) -> Cell:
                start = partial(self._start_guest, launch, template, denials, cleanup)
                return descriptor_pressure.retry(start, launch.run, self._config.queue_timeout, own=self.pool)

            template, cell = _start_in(template, begin, lambda: self._find_template(launch))
            from warmcell.backends.process.run_result import await_result

            return await_result(launch, template, cell, denials, self.pool.on_slow_run)

    def _acquire_gpus(self, template: CellTemplate, run: Run, release: Cleanup) -> None:
        if template.effective.gpu is None:
            return
        from warmcell.backends.process.gpu_slots import GpuSlots

        with self._lock:
            if self._gpu_slots is None:
                self._gpu_slots = GpuSlots(self._config.gpu_concurrency, self._config.queue_timeout)
        self._gpu_slots.acquire(template.effective.gpu, run, release)

    def _start_guest(self, launch: Launch, template: CellTemplate, denials: DenialCollector, cleanup: Cleanup) -> Cell:
        """A cell whose guest has its job. If this fails, everything it opened is closed."""
        self.pool.begin_lease()
        cleanup.callback(self.pool.end_lease)
        try:
            prepared = template.prepare(cleanup)
            worker = warm_worker(launch, template)
            kind = self._cell_kind(launch, template, prepared.plan, worker)
            for _ in range(_ATTEMPTS):
                cell = self.pool.lease(kind, launch.run, _load_run_result)
                cleanup.callback(cell.close)
                egress = self.egress.open(cell, denials.add, cleanup)
                denials.connections = egress.connections
                try:
                    cell.send_job(make_job(launch, template, prepared.directories, egress, worker), launch.run)
                    return cell
                except CellLost:  # it died while it waited and has run nothing: take another
                    continue
            if worker == "image-python":
                raise JobUnread(0, "the image's Python ended before it was sent")
            raise EnforcerFailed(template.zygote.enforcer, "each cell exited before it could be used", hint=CELLS_HINT)
        except BaseException:
            cleanup.close()
            raise

    def _find_template(self, launch: Launch) -> CellTemplate:
        """The template for this kind of run; cached unless it has paths of this run alone."""
        pinned = self.resolver.pin_again() if self.resolver.narrow else None
        if launch.extra_paths:
            return self._make_template(launch)
        program = launch.program
        key = (launch.limits, program.runtime_paths, launch.phase, program.worker, pinned)
        return self._templates.find(key) or self._templates.keep(key, self._make_template(launch))

    def _make_template(self, launch: Launch) -> CellTemplate:
        """The only place that decides which policy a phase runs under."""
        resolver = self.resolver
        is_build = launch.phase == "build"
        resolve, policy = (resolver.resolve_build, BUILD_POLICY) if is_build else (resolver.resolve, resolver.policy)
        effective = resolve(launch.limits, launch.extra_paths)
        return make_template(effective, self._config, launch.program, policy, resolver.enforcer, is_build=is_build)

    def _cell_kind(self, launch: Launch, template: CellTemplate, plan: str, worker: str | None) -> CellKind:
        """The pool's key for cells. Most runs use the warm interpreter and share one key per template."""
        is_python = worker in ("python", "image-python")  # a template is for one of them
        if is_python and template.python_kind is not None:
            return template.python_kind
        limits = launch.limits
        most_processes = limits.processes + (1 if template.has_keeper else 0)
        group = GroupLimits(limits.memory_mb * MIB, most_processes, limits.cpus) if self._group_parent else None
        kind = CellKind(
            template.zygote,
            plan,
            group,
            is_pooled=template.is_shared and not launch.extra_paths,
            has_keeper=template.has_keeper,
            may_exec=worker != "python",
            is_program=worker in (None, "image-python") and "/" in launch.program.argv[0],
            prelude=make_prelude(worker, launch, template),
            has_private_paths=template.has_private_paths,
            overlay=self._overlay_of(template),
        )
        if is_python and template.is_shared:
            template.python_kind = kind
        return kind

    def _run_with_files(self, launch: Launch) -> ExecResult:
        """Small files are sent with the job into any cell; large or fetched ones need a directory on the host."""
        from contextlib import ExitStack

        from warmcell.enforcers.pin_paths import pin
        from warmcell.workspace.private_directory import RunDirectory, check_room

        self._refuse_taken_work_directory()
        check_room(launch.files, launch.limits.disk_mb)
        size = sum(map(len, launch.files.values()))
        if not launch.fetch_files and size <= MAX_SENT_BYTES and not self.resolver.has_wrapper:
            return self._run_with_retry(launch)
        with ExitStack() as cleanup:
            directory = RunDirectory(launch.files, cleanup)
            work = pin(directory.path, WORK_DIR, writable=True)
            launch = replace(launch, files={}, extra_paths=(*launch.extra_paths, work))
            return directory.run_and_fetch(lambda: self._run_with_retry(launch), launch.fetch_files)

    def _refuse_taken_work_directory(self) -> None:
        if any(is_within(path.target, self._work_path) for path in self.resolver.policy.allowed_paths):
            raise InvalidRequest(
                "the policy already shows a directory at the work directory",
                field="files",
                hint="put the files into that directory, or show it at another path",
            )

    def build(self, launch: Launch, cleanup: ExitStack) -> Launch | ExecResult:
        """A launch that can be run many times until `cleanup`, or the result of the compiler if it failed.

        A language without a compiler checks the syntax, as far as that is possible without running the program.
        """
        try:
            launch = replace(launch, program=launch.program.ahead or launch.program)
            builder = self._get_builder(launch.limits)
            if launch.program.build is None:
                return builder.check_syntax(launch)
            return builder.build(launch, cleanup)
        except OSError as error:
            raise host_failure(error) from error

    def _get_builder(self, limits: EffectiveLimits) -> Builder:
        """Refuses what cannot be enforced before anything is compiled."""
        self.resolver.resolve(limits)
        from warmcell.backends.process.building import Builder

        with self._lock:
            if self._builder is None:
                limits_of_builds = self._config.limits_of_builds
                self._builder = Builder(self._run_program, self.resolver.build_scope, limits_of_builds)
            return self._builder

    def live_cage(self, limits: EffectiveLimits, terms: LiveOptions, run: Run) -> LiveCage:
        """A cell that stays until the caller closes it or it ends by itself."""
        find = partial(self._live_template, limits, terms)

        def start(template: CellTemplate) -> LiveCage:
            return self._start_live_cage(template, limits, terms, run)

        cage: LiveCage
        _, cage = _start_in(find(), start, find)
        return cage

    def _live_template(self, limits: EffectiveLimits, terms: LiveOptions) -> CellTemplate:
        from warmcell.backends.process.live_start import check

        self.resolver.pin_again()
        effective = self.resolver.resolve(limits)
        check(effective)
        return self.get_live_setup().template(effective, self._config, terms.shown)

    def _start_live_cage(
        self, template: CellTemplate, limits: EffectiveLimits, terms: LiveOptions, run: Run
    ) -> LiveCage:
        from warmcell.backends.process.live_start import create_live_cage

        begin = partial(
            create_live_cage, template, self._live_kind(limits, template), self.egress, self.pool, terms, run
        )
        slots = Cleanup()
        try:
            with on_error(slots.close):
                self._acquire_gpus(template, run, slots)
                cage = descriptor_pressure.retry(begin, run, self._config.queue_timeout, own=self.pool)
        except OSError as error:
            raise host_failure(error, "start the live cage") from error
        cage.ended.add_done_callback(lambda _: slots.close())
        return cage

    def live_program(self, launch: Launch) -> LiveProgram | ExecResult:
        """A program to start in a live cage, built if its language needs it; or the compiler's result."""
        return self._build_and_use(launch, Launch.as_live_program)

    def find_tools(self) -> HostTools:
        from warmcell.languages.host_tools import host_tools

        def find() -> HostTools:
            return host_tools(self._config).without(allowed.target for allowed in self.resolver.policy.allowed_paths)

        return find() if self.live_setup is None else self.live_setup.tools(find)

    def get_live_setup(self) -> LiveSetup:
        """The setup that launchers of sibling backends share."""
        from warmcell.backends.process.live_setup import LiveSetup

        with self._lock:
            if self.live_setup is None:
                self.live_setup = LiveSetup()
            return self.live_setup

    def _live_kind(self, limits: EffectiveLimits, template: CellTemplate) -> CellKind:
        # The agent counts as one of the processes.
        group = GroupLimits(limits.memory_mb * MIB, limits.processes, limits.cpus) if self._group_parent else None
        with Cleanup() as cleanup:
            prepared = template.prepare(cleanup)
        return CellKind(
            template.zygote,
            prepared.plan,
            group,
            sources=prepared.sources,
            is_pooled=False,
            has_keeper=False,
            may_exec=False,
            has_private_paths=template.has_private_paths,
            overlay=self._overlay_of(template),
        )

    def _overlay_of(self, template: CellTemplate) -> Overlay | None:
        """Builds do not see the work directory."""
        return self._overlay if any(bind.given for bind in template.visible) else None

    def close(self) -> None:
        self.pool.close()
        if self._builder is not None:
            self._builder.close()


def _start_in(
    template: CellTemplate, start: Callable[[CellTemplate], T], find: Callable[[], CellTemplate]
) -> tuple[CellTemplate, T]:
    """Start a guest in a cell of the template. Once more, in the one that `find` returns, if the host replaced
    something protected while the cell was being made: no guest has started then.
    """
    try:
        return template, start(template)
    except EnforcerFailed:
        if template.find_replaced() is None:
            raise
    template = find()
    return template, start(template)


@cache
def _sweep_leftovers() -> None:
    """Removes what killed programs of this user left behind, once per process."""
    if has_abandoned():
        from warmcell.workspace.private_directory import sweep_once

        sweep_once()
