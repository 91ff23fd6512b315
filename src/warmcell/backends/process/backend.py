"""ProcessBackend: runs code in processes, caged by an enforcer unless the caller names the bare class."""

from __future__ import annotations

import errno
import weakref
from functools import partial

from warmcell.backends.process.job import Launch
from warmcell.backends.process.launcher import Launcher
from warmcell.core.errors import BuildFailed, CommandNotFound, InvalidRequest, SandboxError
from warmcell.core.records import replace
from warmcell.core.run_record import RunRecord
from warmcell.core.types import BackendCapabilities, EnforcedLimits, ExecRequest, ExecResult
from warmcell.languages.config import ProcessConfig
from warmcell.languages.program import Program
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.interrupts import Interrupts
from warmcell.lifetime.run import Run
from warmcell.lifetime.runs import Runs
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.places import WORK_DIR
from warmcell.policy.resolve import DEFAULT_POLICY, effective_limits
from warmcell.runner.not_started import NotStarted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

    from warmcell.backends import built
    from warmcell.backends.many import Requests
    from warmcell.backends.process.live import LiveCage
    from warmcell.backends.process.live_program import LiveProgram
    from warmcell.core.contracts import SandboxEnforcer
    from warmcell.core.outcomes import Outcome
    from warmcell.core.output_events import StreamEvent
    from warmcell.core.types import Limits
    from warmcell.languages.host_tools import HostTools
    from warmcell.languages.runtime import LanguageRuntime
    from warmcell.net.rules.fetch_policy import FetchPolicy
    from warmcell.policy.model import NetworkRule
    from warmcell.runner.listening import Listener


class ProcessBackend:
    """Isolation class `process+sandbox`, or `process` with `enforcer=None`, which isolates nothing but the environment.

    `enforcer="auto"` takes the best one that works on this host and fails closed when there is none. Others go by name,
    or are given as an object: what `get_enforcer()` returns, or any `SandboxEnforcer` of another package.
    `policy=None`: no network, no host paths, a private workspace, processes allowed. A built policy means what it says.
    `fetch_policy` is the other way to name what guests may reach: the rules of `Sandbox.fetch`, credentials included.
    `audit` gets one line of JSON for each decision about a guest's connections.
    `work_path` is where guests begin: /work, or another place at which the policy shows a directory. With
    `has_tools` programs find the host's toolchains on their PATH.
    Safe to use from many threads and event loops; close it when done.
    """

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
    ) -> None:
        self._config = config or ProcessConfig()
        self._policy = policy or DEFAULT_POLICY
        self._has_tools = has_tools
        self._tools: HostTools | None = None
        #: Looked up once: looking takes longer than the rest of preparing a program.
        self._runtimes: dict[str, LanguageRuntime] = {}
        self._enforcer = enforcer
        _check_work_path(work_path, self._policy)
        self._launcher = Launcher(self._config, enforcer, self._policy, fetch_policy, audit, work_path)
        self._cages: weakref.WeakSet[LiveCage] = weakref.WeakSet()
        self._runs = Runs(self.name, self._config.most_at_once, self._config.queue_timeout)

    @classmethod
    def with_sandbox(
        cls,
        config: ProcessConfig | None = None,
        enforcer: str | SandboxEnforcer = "auto",
        policy: SandboxPolicy | None = None,
    ) -> ProcessBackend:
        """Never the bare class: raises at once when the enforcer does not work here."""
        if enforcer is None:
            raise InvalidRequest("names the sandbox to use; None is the bare class", field="enforcer")
        backend = cls(config, enforcer, policy)
        backend._launcher.enforcer  # noqa: B018  # resolved now, so that a missing one is told now
        return backend

    @property
    def policy(self) -> SandboxPolicy:
        return self._policy

    @property
    def config(self) -> ProcessConfig:
        return self._config

    @property
    def enforcer(self) -> str | SandboxEnforcer | None:
        """As it was asked for."""
        return self._enforcer

    def capabilities(self) -> BackendCapabilities:
        """What really holds on this host, measured."""
        enforced = self._launcher.describe()
        limits = EnforcedLimits(
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
        from warmcell.languages.registry import LanguageVersions, available_languages

        languages = available_languages(self._config)
        return BackendCapabilities(
            supported_languages=languages,
            isolation_class=enforced.isolation_class,
            enforced_limits=limits,
            network=self._launcher.egress.destinations,
            versions=LanguageVersions(languages, self._config),
        )

    @property
    def ready_cells(self) -> int:
        """How many warm cells wait now."""
        return self._launcher.pool.ready_count()

    @property
    def zygote_pids(self) -> list[int]:
        """The processes that cells are forked from."""
        return self._launcher.pool.zygote_pids()

    def execute_blocking(
        self, request: ExecRequest, *, stdin: int = -1, listener: Listener | None = None
    ) -> ExecResult:
        """Runs the request in the calling thread.

        `stdin` is a descriptor whose data the guest reads as it comes, in place of the request's; `listener` hears what
        it writes, in this thread.
        """
        with RunRecord(self.name, request, self._policy) as record:
            record.result = self._runs.run_blocking(lambda run: self._execute(request, run, stdin, listener))
            return record.result

    async def execute(self, request: ExecRequest, *, stdin: int = -1, listener: Listener | None = None) -> ExecResult:
        """Runs the request in a thread of its own. Cancelling the task ends the run before the cancellation is seen."""
        with RunRecord(self.name, request, self._policy) as record:
            record.result = await self._runs.run(lambda run: self._execute(request, run, stdin, listener))
            return record.result

    def stream(self, request: ExecRequest, *, stdin: int = -1) -> AsyncIterator[StreamEvent]:
        """`OutputEvent`s as the guest writes, last a `ResultEvent`; see `backends.streaming`. Leaving it ends the run.

        While somebody listens, warm Python is line-buffered as on a terminal; other programs see a pipe, as ever.
        `stdin` is a descriptor, to be kept open until the end, whose data the guest reads as it comes.
        """
        from warmcell.backends.streaming import stream

        return stream(lambda listener: self.execute(request, stdin=stdin, listener=listener))

    def stream_blocking(self, request: ExecRequest, *, stdin: int = -1) -> Iterator[StreamEvent]:
        """The same for code without an event loop."""
        from warmcell.backends.many import in_step

        return in_step(self.stream(request, stdin=stdin))

    def stream_command(self, argv: Sequence[str], cwd: str, request: ExecRequest) -> AsyncIterator[StreamEvent]:
        """`stream` for `execute_command`."""
        from warmcell.backends.streaming import stream

        return stream(lambda listener: self.execute_command(argv, cwd, request, listener=listener))

    async def execute_command(
        self, argv: Sequence[str], cwd: str, request: ExecRequest, *, listener: Listener | None = None
    ) -> ExecResult:
        """Runs a program with its arguments, no shell in between, with what the request says beside its code.

        `CommandNotFound` is what exec said before any of the guest's code ran; no guest can make it up. Not for
        enforcers that put a program of their own around the guest: see `takes_commands`.
        """
        program = Program(tuple(argv), {}, "", cwd=cwd)
        with RunRecord(self.name, request, self._policy) as record:
            record.result = await self._runs.run(lambda run: self._execute_command(program, request, run, listener))
            return record.result

    def takes_commands(self) -> bool:
        """Whether `execute_command` can be used with this enforcer. Looks for the enforcer the first time."""
        return not self._launcher.has_wrapper

    def _execute_command(
        self, program: Program, request: ExecRequest, run: Run, listener: Listener | None
    ) -> ExecResult:
        try:
            return self._launcher.run(self._planned(program, request, run, listener=listener))
        except NotStarted as failure:
            raise command_refusal(program.argv[0], failure) from None

    def _execute(self, request: ExecRequest, run: Run, stdin: int = -1, listener: Listener | None = None) -> ExecResult:
        return self._launcher.run(self._planned(self._prepared(request), request, run, stdin, listener))

    def _prepared(self, request: ExecRequest) -> Program:
        runtime = self._runtimes.get(request.language) or self._find_runtime(request.language)
        assert isinstance(request.code, str)  # bytes are for wasm, which has just been refused
        try:
            return runtime.prepare(request.code, self._config)
        except OSError as error:
            raise host_failure(error, f"prepare {request.language}") from error

    def _find_runtime(self, language: str) -> LanguageRuntime:
        from warmcell.languages.registry import language_runtime

        return self._runtimes.setdefault(language, language_runtime(language))

    def _planned(
        self,
        program: Program,
        request: ExecRequest,
        run: Run,
        stdin: int = -1,
        listener: Listener | None = None,
    ) -> Launch:
        return Launch(
            program=self._with_tools(program) if self._has_tools else program,
            env=request.env,
            stdin=stdin if stdin >= 0 else request.stdin_bytes,
            timeout=request.timeout,
            limits=effective_limits(self._policy, request.limits, request.memory_limit_mb),
            run=run,
            args=tuple(request.args),
            files=request.files,  # type: ignore[arg-type]  # text has become bytes when it was checked
            fetch_files=tuple(request.fetch_files),
            listener=listener,
        )

    def _with_tools(self, program: Program) -> Program:
        """Looked for by the first run: what the caller configured may have to be asked."""
        if self._tools is None:
            from warmcell.languages.host_tools import host_tools

            self._tools = host_tools(self._config).without(allowed.target for allowed in self._policy.allowed_paths)
        return program.beside(self._tools.shown, self._tools.path)

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
        from warmcell.backends.process.live_making import LiveTerms

        effective = effective_limits(self._policy, limits, memory_limit_mb)
        program = self._with_tools(Program((), {}, "")) if self._has_tools else Program((), {}, "")
        given = {**program.env, **self._policy.env, **(env or {})}
        terms = LiveTerms(given, idle_timeout, program.runtime_paths)
        cage = await self._runs.run(lambda run: self._launcher.live_cage(effective, terms, run))
        self._cages.add(cage)
        return cage

    async def live_program(self, request: ExecRequest) -> LiveProgram | ExecResult:
        """What `execute` would run, to be started in a live cage; or the result, where it does not compile."""
        plan = self._planned
        return await self._runs.run(
            lambda run: self._launcher.live_program(plan(self._prepared(request), request, run))
        )

    async def build(self, request: ExecRequest) -> built.Program:
        """Compiles the program, or checks its syntax, once. Raises `BuildFailed` with what the compiler said.

        A build has `ProcessConfig.build_timeout` and `build_limits`; the request's are for each run.
        """
        return await self._runs.run(lambda run: self._build(request, run))

    def build_blocking(self, request: ExecRequest) -> built.Program:
        """The same in the calling thread."""
        return self._runs.run_blocking(lambda run: self._build(request, run))

    def _build(self, request: ExecRequest, run: Run) -> built.Program:
        from contextlib import ExitStack

        from warmcell.backends.built import Program as BuiltProgram

        asked = replace(self._planned(self._prepared(request), request, run), timeout=self._config.build_timeout)
        with ExitStack() as cleanup:
            ready = self._launcher.build(asked, cleanup)
            if isinstance(ready, ExecResult):
                raise BuildFailed(ready)
            release = cleanup.pop_all().close
        return BuiltProgram(self.name, request, self._runs, partial(self._run_built, ready), release)

    def _run_built(self, ready: Launch, request: ExecRequest, run: Run, listener: Listener | None) -> ExecResult:
        asked = self._planned(ready.program, request, run, listener=listener)
        return self._launcher.run(replace(asked, artefact=ready.artefact))

    def run_many(self, requests: Requests, concurrency: int | None = None) -> AsyncIterator[Outcome]:
        """Outcomes as they finish, `concurrency` runs at a time (None: from the processors). See `backends.many`."""
        from warmcell.backends.many import run_many

        return run_many(self.execute, requests, concurrency)

    def run_many_blocking(self, requests: Iterable[ExecRequest], concurrency: int | None = None) -> Iterator[Outcome]:
        """The same for code without an event loop."""
        from warmcell.backends.many import in_step

        return in_step(self.run_many(requests, concurrency))

    def set_network_rules(self, rules: FetchPolicy | Iterable[NetworkRule]) -> None:
        """Changes what guests may reach, from their next connection on. A backend made without a network gets none."""
        from warmcell.net.rules.fetch_policy import FetchPolicy

        self._launcher.egress.set_rules(rules if isinstance(rules, FetchPolicy) else tuple(rules))

    def close(self) -> None:
        """Ends the runs that are under way, which raise `BackendUnavailable`, then waiting cells and zygotes.

        A zygote that other backends of this program use goes on for them.
        """
        with Interrupts(Run()):  # half of it done would leave the other half to nobody
            self._runs.close()
            for cage in tuple(self._cages):
                cage.close()
            self._launcher.close()

    async def aclose(self) -> None:
        from warmcell.lifetime.threads import in_thread

        await in_thread(self.close)

    def __enter__(self) -> ProcessBackend:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def __aenter__(self) -> ProcessBackend:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


def _check_work_path(work_path: str, policy: SandboxPolicy) -> None:
    if work_path != WORK_DIR and all(allowed.target != work_path for allowed in policy.allowed_paths):
        raise InvalidRequest(f"the policy shows nothing at {work_path!r}", field="work_path", hint="allow that path")


_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


def command_refusal(command: str, failure: NotStarted) -> SandboxError:
    """What exec's errno means to who named the command."""
    if failure.errno in _NOT_THERE:
        return CommandNotFound(command)
    if failure.errno == errno.EACCES:
        return CommandNotFound(command, "is no program: it may not be executed", hint="chmod +x, or name what reads it")
    if failure.errno == errno.ENOEXEC:
        hint = "begin it with a line such as #!/bin/sh, or name what reads it"
        return CommandNotFound(command, "is no program: the kernel does not know its format", hint=hint)
    if failure.errno == errno.E2BIG:
        return InvalidRequest("longer than the kernel passes to a program", field="args", hint="use stdin or a file")
    return failure
