"""ProcessBackend: runs code in processes, caged by an enforcer unless the caller names the bare class."""

from __future__ import annotations

import weakref
from functools import partial

from warmcell.backends.base import BackendBase
from warmcell.backends.process.launch import Launch
from warmcell.backends.process.launcher import Launcher
from warmcell.backends.process.policy_resolver import check_work_path
from warmcell.core import events
from warmcell.core.errors import BuildFailed, InvalidRequest
from warmcell.core.light import on_error
from warmcell.core.records import replace
from warmcell.core.request_checks import check_kind
from warmcell.core.run_record import RunRecord
from warmcell.core.types import MAX_TIMEOUT, BackendCapabilities, EffectiveLimits, ExecRequest, ExecResult
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program_spec import ProgramSpec
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.run import Run
from warmcell.lifetime.runs import Interrupts, Runs
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.places import WORK_DIR
from warmcell.policy.resolve import check_policy, effective_limits, limits_in_force
from warmcell.runner.not_started import NotStarted, command_refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from typing import Any

    from warmcell.backends import built
    from warmcell.backends.process.egress import Egress
    from warmcell.backends.process.image import OpenImage
    from warmcell.backends.process.launch import LiveProgram
    from warmcell.backends.process.live import LiveCage
    from warmcell.backends.supervisor_process import BackendFactory
    from warmcell.core.output_events import StreamEvent
    from warmcell.core.types import Limits
    from warmcell.enforcers.contract import SandboxEnforcer
    from warmcell.images import Image
    from warmcell.languages.host_tools import HostTools
    from warmcell.languages.runtime import LanguageRuntime
    from warmcell.net.rules.fetch_policy import FetchPolicy
    from warmcell.policy.model import NetworkRule
    from warmcell.pool.zygote import Overlay
    from warmcell.runner.listening import Listener

#: More runs in progress than this are a crowd.
CROWD = 8


class ProcessBackend(BackendBase):
    """Isolation class `process+sandbox`, or `process` with `enforcer=None`, which isolates nothing but the environment.

    `enforcer="auto"` uses the best enforcer that works on this host and fails closed if none does. Others go by name,
    or are given as an object: what `get_enforcer()` returns, or any `SandboxEnforcer` of another package.
    `allow_weaker="landlock"` lets "auto" use Landlock, seccomp and rlimits where no cage can be built, as in default
    containers; `result.enforced` and `capabilities()` then say so. `policy=None`: no network, no host paths, a
    private workspace, processes allowed. A built policy means what it says. `fetch_policy` is the other way to name
    what guests may reach: the rules of `Sandbox.fetch`, credentials included. `audit` gets one line of JSON for each
    decision about a guest's connections. `image` is the guests' root instead of the host's system: a name in the
    image store, or an `Image`. `user` is the user in it, by name or number: "root", say. None: the one that the image
    names. `overlay` is mounted at the work path in place of the directory that the policy shows there. `work_path` is
    the guests' working directory: /work, or another place at which the policy shows a directory. With `has_tools`
    programs find the host's toolchains on their PATH. Safe to use from many threads and event loops; close it when
    done."""

    name = "process"

    def __init__(
        self,
        config: ProcessConfig | None = None,
        enforcer: str | SandboxEnforcer | None = "auto",
        policy: SandboxPolicy | None = None,
        *,
        fetch_policy: FetchPolicy | None = None,
        audit: Callable[[str], None] | None = None,
        work_path: str = WORK_DIR,
        has_tools: bool = False,
        allow_weaker: str | None = None,
        image: str | Image | None = None,
        user: str | None = None,
        overlay: Overlay | None = None,
    ) -> None:
        self._config = ProcessConfig() if config is None else check_kind("config", config, ProcessConfig)
        self._is_bound = audit is not None or overlay is not None
        others: dict[str, Any] = {"fetch_policy": fetch_policy, "work_path": work_path, "has_tools": has_tools}
        others |= {"allow_weaker": allow_weaker, "image": image, "user": user}
        self._factory = partial(ProcessBackend, config, enforcer, policy, **others)
        self._policy = check_policy(policy)
        self._has_tools = has_tools and image is None
        self._tools: HostTools | None = None
        #: Cached: the look-up takes longer than the rest of preparing a program.
        self._runtimes: dict[str, LanguageRuntime] = {}
        check_work_path(work_path, self._policy)
        #: As given to the constructor.
        self._enforcer, self.allow_weaker, self.image, self.user = enforcer, allow_weaker, image, user
        #: For the sandbox that owns this backend, too.
        self.opened_image: OpenImage | None = None
        if image is not None or user is not None:
            from warmcell.backends.process.image import open_image

            self.opened_image = open_image(image, user)
        root = self.opened_image.root if self.opened_image is not None else None
        with on_error(lambda: None if self.opened_image is None else self.opened_image.close()):
            self._launcher = Launcher(
                self._config, enforcer, self._policy, fetch_policy, audit, work_path, allow_weaker, root, overlay
            )
        self._cages: weakref.WeakSet[LiveCage] = weakref.WeakSet()
        self._runs = Runs(self.name, self._config.most_at_once, self._config.queue_timeout)

    @classmethod
    def with_sandbox(
        cls,
        config: ProcessConfig | None = None,
        enforcer: str | SandboxEnforcer = "auto",
        policy: SandboxPolicy | None = None,
    ) -> ProcessBackend:
        """A backend that always isolates: raises at once if the enforcer does not work here."""
        if enforcer is None:
            raise InvalidRequest("must name an enforcer; None is the bare class", field="enforcer")
        backend = cls(config, enforcer, policy)
        backend._launcher.resolver.enforcer  # noqa: B018  # resolved now, so that a missing one is reported now
        return backend

    @property
    def policy(self) -> SandboxPolicy:
        return self._policy

    @property
    def config(self) -> ProcessConfig:
        return self._config

    @property
    def enforcer(self) -> str | SandboxEnforcer | None:
        """As given to the constructor."""
        return self._enforcer

    def capabilities(self) -> BackendCapabilities:
        """The languages and limits of this host, as measured."""
        enforced = self._launcher.resolver.resolve(EffectiveLimits()).enforced
        from warmcell.languages.registry import LanguageVersions, available_languages, language_version

        languages = available_languages(self._config) if self.opened_image is None else self.opened_image.languages
        return BackendCapabilities(
            supported_languages=languages,
            isolation_class=enforced.isolation_class,
            enforced_limits=limits_in_force(enforced),
            network=self._launcher.egress.destinations,
            versions=LanguageVersions(languages, partial(language_version, config=self._config)),
        )

    @property
    def ready_cells(self) -> int:
        """How many warm cells there are now."""
        return len(self._launcher.pool.ready())

    @property
    def zygote_pids(self) -> list[int]:
        """The zygotes that cells are forked from."""
        return self._launcher.pool.zygote_pids()

    def execute_blocking(
        self, request: ExecRequest, *, stdin: int = -1, listener: Listener | None = None, run: Run | None = None
    ) -> ExecResult:
        """Runs the request in the calling thread.

        `stdin` is a descriptor whose data the guest reads as it arrives, in place of the request's; `listener` gets the
        output as it arrives, in this thread. By `run`, another thread can cancel it.
        """
        with RunRecord(self.name, request, self._policy) as record:
            record.result = self._runs.run_blocking(lambda run: self._execute(request, run, stdin, listener), run)
            return record.result

    async def execute(self, request: ExecRequest, *, stdin: int = -1, listener: Listener | None = None) -> ExecResult:
        """Runs the request in a thread. Cancelling the task ends the run before the cancellation is raised."""
        return await self._run_recorded(request, lambda run: self._execute(request, run, stdin, listener))

    async def execute_here(self, request: ExecRequest) -> ExecResult:
        """`execute`, but always in this process."""
        return await self._run_recorded(request, lambda run: self._execute(request, run, is_here=True))

    async def _run_recorded(self, request: ExecRequest, work: Callable[[Run], ExecResult]) -> ExecResult:
        with RunRecord(self.name, request, self._policy) as record:
            record.result = await self._runs.run(work)
            return record.result

    def stream(self, request: ExecRequest, *, stdin: int = -1) -> AsyncIterator[StreamEvent]:
        """`OutputEvent`s as the guest writes, then a `ResultEvent`; see `backends.streaming`. Closing the iterator ends
        the run.

        While it is read, warm Python is line-buffered as on a terminal; other programs write to a pipe as usual.
        `stdin` is a descriptor whose data the guest reads as it arrives; keep it open until the end.
        """
        from warmcell.backends.streaming import stream

        return stream(lambda listener: self.execute(request, stdin=stdin, listener=listener))

    def stream_command(self, argv: Sequence[str], cwd: str, request: ExecRequest) -> AsyncIterator[StreamEvent]:
        """`stream` for `execute_command`."""
        from warmcell.backends.streaming import stream

        return stream(lambda listener: self.execute_command(argv, cwd, request, listener=listener))

    async def execute_command(
        self, argv: Sequence[str], cwd: str, request: ExecRequest, *, listener: Listener | None = None
    ) -> ExecResult:
        """Runs a program with its arguments, without a shell, under the request's limits, environment and files.

        `CommandNotFound` reports what exec returned before any guest code ran; a guest cannot forge it. Not for
        enforcers that wrap the guest in a program of their own: see `takes_commands`.
        """
        program = ProgramSpec(tuple(argv), {}, "", cwd=cwd)
        return await self._run_recorded(request, lambda run: self._execute_command(program, request, run, listener))

    def execute_entrypoint_blocking(
        self, request: ExecRequest, *, stdin: int = -1, listener: Listener | None = None
    ) -> ExecResult:
        """Runs what the image names: its ENTRYPOINT, with the request's arguments or, if there are none, with CMD.

        The request's code is for records of the run only.
        """
        if self.opened_image is None:
            raise InvalidRequest("the backend has no image, and so no default command", field="image")
        argv = self.opened_image.default_command(tuple(request.args))
        program = ProgramSpec(argv, {}, "", cwd=self.opened_image.root.work_dir or WORK_DIR)
        asked = replace(request, args=())
        with RunRecord(self.name, request, self._policy) as record:
            record.result = self._runs.run_blocking(
                lambda run: self._execute_command(program, asked, run, listener, stdin)
            )
            return record.result

    def takes_commands(self) -> bool:
        """Whether `execute_command` works with this enforcer. Probes the enforcer the first time."""
        return not self._launcher.resolver.has_wrapper

    def _execute_command(
        self, program: ProgramSpec, request: ExecRequest, run: Run, listener: Listener | None, stdin: int = -1
    ) -> ExecResult:
        try:
            return self._launcher.run(self._make_launch(program, request, run, stdin, listener))
        except NotStarted as failure:
            raise command_refusal(program.argv[0], failure) from None

    def _execute(
        self, request: ExecRequest, run: Run, stdin: int = -1, listener: Listener | None = None, is_here: bool = False
    ) -> ExecResult:
        if not is_here and stdin < 0 and listener is None and self._runs.number_in_progress > CROWD:
            extra = self._find_extra_supervisors()
            if extra and (result := extra.run(request, run, self._find_factory_of_runs())) is not None:
                return result
        return self._launcher.run(self._make_launch(self._prepare(request), request, run, stdin, listener))

    def _prepare(self, request: ExecRequest) -> ProgramSpec:
        if self.opened_image is not None and isinstance(request.code, str):
            return self.opened_image.prepare(request.language, request.code)
        runtime = self._runtimes.get(request.language)
        if runtime is None:
            from warmcell.languages.registry import language_runtime

            runtime = self._runtimes.setdefault(request.language, language_runtime(request.language))
        assert isinstance(request.code, str)  # bytes are for wasm, which was refused above
        try:
            return runtime.prepare(request.code, self._config)
        except OSError as error:
            raise host_failure(error, f"prepare {request.language}") from error

    def _make_launch(
        self, program: ProgramSpec, request: ExecRequest, run: Run, stdin: int = -1, listener: Listener | None = None
    ) -> Launch:
        return Launch(
            program=self._with_tools(program),
            env=request.env,
            stdin=stdin if stdin >= 0 else request.stdin_bytes,
            timeout=request.timeout,
            limits=effective_limits(self._policy, request.limits, request.memory_limit_mb),
            run=run,
            args=tuple(request.args),
            files=request.files,  # type: ignore[arg-type]  # text has become bytes when it was checked
            fetch_files=tuple(request.fetch_files),
            listener=listener,
            ends_at_output_limit=request.ends_at_output_limit,
        )

    def _with_tools(self, program: ProgramSpec) -> ProgramSpec:
        """Finds the host's toolchains at the first run: configured ones may have to be started."""
        if not self._has_tools:
            return program
        if self._tools is None:
            self._tools = self._launcher.find_tools()
        return program.with_tools(self._tools.shown, self._tools.path)

    def adopt(self, sibling: ProcessBackend) -> None:
        """Before the first run: reuses what a sibling with the same settings has found on this host."""
        self._launcher.live_setup = sibling._launcher.get_live_setup()

    async def live_cage(
        self,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
        *,
        memory_limit_mb: int | None = None,
        idle_timeout: float | None = None,
    ) -> LiveCage:
        """A cage that stays, in which programs are started one by one; see `backends.process.live`. Close it.

        Without programs it ends by itself after `idle_timeout` seconds.
        """
        from warmcell.backends.process.live_start import LiveOptions

        program = self._with_tools(ProgramSpec((), {}, ""))
        given = {**program.env, **self._policy.env, **(env or {})}
        terms = LiveOptions(given, idle_timeout, program.runtime_paths)
        make = partial(self._launcher.live_cage, effective_limits(self._policy, limits, memory_limit_mb), terms)
        cage = await self._runs.run(make, discard=lambda cage: cage.close())
        self._cages.add(cage)
        return cage

    async def live_program(self, request: ExecRequest) -> LiveProgram | ExecResult:
        """The program that `execute` would run, to be started in a live cage; or the result if it does not compile."""
        make = self._make_launch
        return await self._runs.run(lambda run: self._launcher.live_program(make(self._prepare(request), request, run)))

    async def build(self, request: ExecRequest, *, timeout: float = MAX_TIMEOUT) -> built.Program:
        """Compiles the program, or checks its syntax, once. Raises `BuildFailed` with the compiler's output.

        A build has `ProcessConfig.build_timeout`, at most `timeout`, and `build_limits`; runs have the request's.
        """
        return await self._runs.run(partial(self._build, request, timeout=timeout), discard=lambda made: made.close())

    def build_blocking(self, request: ExecRequest) -> built.Program:
        """Like `build`, in the calling thread."""
        return self._runs.run_blocking(lambda run: self._build(request, run))

    def _build(self, request: ExecRequest, run: Run, timeout: float = MAX_TIMEOUT) -> built.Program:
        from contextlib import ExitStack

        from warmcell.backends.built import Program as BuiltProgram

        launch = self._make_launch(self._prepare(request), request, run)
        asked = replace(launch, timeout=min(timeout, self._config.build_timeout))
        with ExitStack() as cleanup:
            ready = self._launcher.build(asked, cleanup)
            if isinstance(ready, ExecResult):
                raise BuildFailed(ready)
            release = cleanup.pop_all().close
        return BuiltProgram(self.name, request, self._runs, partial(self._run_again, ready), release)

    def _run_again(self, ready: Launch, request: ExecRequest, run: Run, listener: Listener | None) -> ExecResult:
        asked = self._make_launch(ready.program, request, run, listener=listener)
        return self._launcher.run(replace(asked, artefact=ready.artefact))

    @property
    def recipe(self) -> BackendFactory | None:
        """How another process recreates this backend; None if it depends on objects of this process."""
        return None if self._is_bound else self._factory

    def _find_factory_of_runs(self) -> BackendFactory | None:
        """None if runs must stay in this process, because it observes events, connections, GPUs or pinned paths."""
        grants = self._policy
        is_watched = events.listeners or self._launcher.egress.has_rules or grants.allowed_paths or grants.gpus
        return None if is_watched else self.recipe

    def set_network_rules(self, rules: FetchPolicy | Iterable[NetworkRule]) -> None:
        """Changes what guests may reach, from their next connection on. A backend made without a network gets none."""
        from warmcell.net.rules.fetch_policy import FetchPolicy

        self._is_bound = True
        self._launcher.egress.set_rules(rules if isinstance(rules, FetchPolicy) else tuple(rules))

    @property
    def egress(self) -> Egress | None:
        """The egress of guests, for the sandbox that owns this backend; None if there is no proxy."""
        egress = self._launcher.egress
        return egress if egress.has_rules and not self._policy.allow_network else None

    def close(self) -> None:
        """Ends the runs in progress, which raise `BackendUnavailable`, then warm cells and zygotes.

        A zygote that other backends of this program use stays for them.
        """
        with Interrupts(Run()):  # an interrupt half-way would leave the rest open
            self._runs.close()
            for cage in tuple(self._cages):
                cage.close()
            self._end_supervisors()
            self._launcher.close()
            if self.opened_image is not None:
                self.opened_image.close()

    def __repr__(self) -> str:
        enforcer = self._enforcer if isinstance(self._enforcer, str | None) else self._enforcer.name
        grants = self._policy
        network = "all" if grants.allow_network else ",".join(rule.domain for rule in grants.network_rules) or "none"
        processes = "allowed" if grants.allow_process_spawn else "denied"
        return f"<ProcessBackend enforcer={enforcer} network={network} processes={processes}>"
