"""How a sandbox runs things: one small adapter per backend, so that `sandbox.py` knows none of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from warmcell.core.errors import CommandNotFound, ExecutionFailed, InvalidRequest
from warmcell.core.types import BackendCapabilities, ExecRequest, ExecResult, Language
from warmcell.languages.registry import canonical, known_language
from warmcell.lifetime.threads import in_thread
from warmcell.policy.carried import uncarried
from warmcell.policy.model import SandboxPolicy
from warmcell.sandbox.guest_config import OWN_POLICY, GuestConfig, Job, sandbox_policy, with_limits
from warmcell.sandbox.shell_words import command_line, in_directory, quoted
from warmcell.workspace.mount_points import WORK

if TYPE_CHECKING:
    from warmcell.backends.process.backend import ProcessBackend
    from warmcell.backends.process.live import LiveCage
    from warmcell.backends.process.live_program import LiveProgram
    from warmcell.core.contracts import SandboxBackend
    from warmcell.core.output_events import StreamEvent

#: Program and arguments, directory, and a request for all the rest.
CommandCall = Callable[[Sequence[str], str, ExecRequest], Awaitable[ExecResult]]


class Guest(Protocol):
    """Runs things for one sandbox, many at a time. When a call ends or is cancelled, nothing of the run is left."""

    async def command(self, argv: Sequence[str], job: Job) -> ExecResult:
        """One program with its arguments, no shell in between; `CommandNotFound` when there is no such program."""
        ...

    async def script(self, script: str, job: Job) -> ExecResult: ...

    async def code(self, code: str | bytes, language: Language | str, job: Job) -> ExecResult: ...

    async def tools(self) -> list[str]:
        """The commands that `command` finds by a bare name, sorted."""
        ...

    def capabilities(self) -> BackendCapabilities:
        """What it can run on this host and what really holds there, measured."""
        ...

    async def aclose(self) -> None: ...


GuestFactory = Callable[["str | SandboxBackend", GuestConfig], Guest]


def make_guest(backend: str | SandboxBackend, config: GuestConfig) -> Guest:
    """The adapter for a backend by its name, or for one that exists."""
    if not isinstance(backend, str):
        return guest_beside(backend, config)
    if backend == "process":
        return ProcessGuest(config)
    _refuse_process_settings(backend, config)
    if backend == "wasm":
        _refuse_process_policy(config.policy)
        from warmcell.backends.wasm.guest import WasmGuest

        return WasmGuest(config)
    from warmcell.backends.registry import get_backend

    options = {} if config.fetch_policy is None else {"fetch_policy": config.fetch_policy}
    return ProcessGuest(config, get_backend(backend, policy=sandbox_policy(config), **options))


def language_for(backend: str, name: str) -> Language | str:
    """A language's own name. One that nobody here knows is refused, unless the backend is another package's."""
    row = known_language(name) if isinstance(name, str) else None
    return canonical(name) if row is not None or backend in ("process", "wasm") else name


def _refuse_process_settings(backend: str, config: GuestConfig) -> None:
    """Whoever names an interpreter or an enforcer must not get a sandbox that has neither."""
    hint = f"leave it out, or use another backend than {backend!r}"
    if config.process_config is not None:
        raise InvalidRequest("is for the process backend", field="config", hint=hint)
    if config.enforcer != "auto":
        raise InvalidRequest("is for the process backend", field="enforcer", hint=hint)
    if config.work_path != WORK:
        raise InvalidRequest("is for the process backend", field="work_path", hint=hint)


def _refuse_process_policy(policy: SandboxPolicy | None) -> None:
    """What a policy grants must not be dropped in silence; of its parts only the limits mean something to WASM."""
    if policy is not None and uncarried("wasm", policy):
        hint = "use mounts=, fetch_policy= and env="
        raise InvalidRequest("is for the process backend, apart from its limits", field="policy", hint=hint)


class ProcessGuest:
    """Real processes, each run in a cage of its own that shows the work directory; or another package's backend."""

    def __init__(self, config: GuestConfig, backend: SandboxBackend | None = None, is_ours: bool = True) -> None:
        if config.fuel is not None:
            raise InvalidRequest("this backend cannot count instructions", field="fuel", hint="use backend='wasm'")
        self._config = config
        self._backend = backend or _process_backend(config)
        self._is_ours = is_ours
        self._execute_command: CommandCall | None = None
        self._is_settled = False

    async def command(self, argv: Sequence[str], job: Job) -> ExecResult:
        execute = await self._direct_way()
        if execute is None:
            return await self._command_by_shell(argv, job)
        request = self.request(command_line(argv), Language.COMMAND, job)
        if job.follow is not None:
            return await job.follow(self._way_to_hear("stream_command")(argv, job.cwd, request))
        return await execute(argv, job.cwd, request)

    async def _direct_way(self) -> CommandCall | None:
        """The backend's own way to start a program, where it has one and nothing of another's stands between."""
        if not self._is_settled:
            execute = getattr(self._backend, "execute_command", None)
            if execute is not None and await in_thread(self._backend.takes_commands):  # type: ignore[attr-defined]
                self._execute_command = execute
            self._is_settled = True
        return self._execute_command

    async def _command_by_shell(self, argv: Sequence[str], job: Job) -> ExecResult:
        """Asks first, in a run of its own: after the command has run, whatever is seen may be its doing."""
        found = await self.script(
            f"command -v {quoted(argv[0])} >/dev/null 2>&1", replace(job, stdin=None, follow=None)
        )
        if not found.ok:
            raise CommandNotFound(argv[0])
        return await self.script(command_line(argv), job)

    async def script(self, script: str, job: Job) -> ExecResult:
        return await self._shell(in_directory(script, job.cwd, self._config.work_path), job)

    async def code(self, code: str | bytes, language: Language | str, job: Job) -> ExecResult:
        request = self.request(code, language, job)
        if job.follow is not None:
            return await job.follow(self._way_to_hear("stream")(request))
        return await self._backend.execute(request)

    def _way_to_hear(self, name: str) -> Callable[..., AsyncIterator[StreamEvent]]:
        """The contract of backends is without it, so another package's may have none."""
        way: Callable[..., AsyncIterator[StreamEvent]] | None = getattr(self._backend, name, None)
        if way is None:
            reason = f"the backend {self._backend.name!r} does not pass output on while it comes"
            raise InvalidRequest(reason, field="on_stdout", hint="leave on_stdout and on_stderr out")
        return way

    def request(self, code: str | bytes, language: Language | str, job: Job) -> ExecRequest:
        return ExecRequest(language, code, job.timeout, job.stdin, self._config.memory_limit_mb, self._config.env)

    async def tools(self) -> list[str]:
        """As the guest's own PATH shows them: what lies on the host's may not be in the cage, or be another's."""
        listed = await self._shell(_LIST_TOOLS, Job(self._config.work_path))
        if listed.stdout_truncated:
            reason = "is too small for a list of the sandbox's commands"
            raise InvalidRequest(reason, field="limits.output_bytes", hint="raise Limits(output_bytes=...)")
        if not listed.ok:
            raise ExecutionFailed(f"could not list the commands of the sandbox: {listed.stderr.strip()}")
        return sorted({name.decode("utf-8", "replace") for name in listed.stdout_bytes.split(b"\0") if name})

    async def _shell(self, script: str, job: Job) -> ExecResult:
        return await self.code(script, Language.COMMAND, job)

    def capabilities(self) -> BackendCapabilities:
        return self._backend.capabilities()

    @property
    def has_live_cage(self) -> bool:
        return hasattr(self._backend, "live_cage")

    async def live_cage(self) -> LiveCage:
        """One of this sandbox's own, that stays."""
        opens = getattr(self._backend, "live_cage", None)
        if opens is None:
            raise no_live_cage(self._backend.name)
        config = self._config
        cage: LiveCage = await opens(
            env=config.env, memory_limit_mb=config.memory_limit_mb, idle_timeout=config.idle_timeout
        )
        return cage

    async def live_program(self, request: ExecRequest) -> LiveProgram | ExecResult:
        """For who starts it in the live cage."""
        opens: Callable[[ExecRequest], Awaitable[LiveProgram | ExecResult]] | None = getattr(
            self._backend, "live_program", None
        )
        if opens is None:
            raise no_live_cage(self._backend.name)
        return await opens(request)

    async def aclose(self) -> None:
        if self._is_ours:
            await self._backend.aclose()


def no_live_cage(backend: str) -> InvalidRequest:
    """For whoever asks a backend for what it does not have."""
    reason = f"the backend {backend!r} keeps nothing running between calls"
    return InvalidRequest(reason, field="backend", hint="use Sandbox(backend='process')")


def _process_backend(config: GuestConfig) -> ProcessBackend:
    """Guests reach what the fetch policy allows, unless the policy has rules of its own for them."""
    from warmcell.backends.process.backend import ProcessBackend

    policy = sandbox_policy(config)
    has_own_rules = policy.allow_network or bool(policy.network_rules)
    fetch_policy = None if has_own_rules else config.fetch_policy
    return ProcessBackend(
        config.process_config,
        config.enforcer,
        policy,
        fetch_policy=fetch_policy,
        work_path=config.work_path,
        has_tools=policy.allow_process_spawn,
    )


def guest_beside(backend: SandboxBackend, config: GuestConfig) -> Guest:
    """For a backend that exists: what it was made with holds here too, and the work directory is added to it.

    A fake answers by itself, and stays its maker's; one of another package has no way to be told of the directory.
    """
    from warmcell.backends.fake import FakeBackend
    from warmcell.backends.process.backend import ProcessBackend

    if isinstance(backend, FakeBackend):
        _refuse_process_settings("fake", config)
        return ProcessGuest(config, backend, is_ours=False)
    if not isinstance(backend, ProcessBackend):
        hint = "a ProcessBackend, a FakeBackend, or the name of a backend, which is then made with the work directory"
        raise InvalidRequest(f"a {type(backend).__name__} cannot be given a work directory", field="backend", hint=hint)
    _refuse_said_twice(config)
    if backend.enforcer is None:
        raise InvalidRequest("is the bare class, and a sandbox has a cage", field="backend", hint="give it an enforcer")
    policy = backend.policy if config.policy is None else with_limits(backend.policy, config.policy.limits)
    return ProcessGuest(replace(config, process_config=backend.config, enforcer=backend.enforcer, policy=policy))


def _refuse_said_twice(config: GuestConfig) -> None:
    """Limits alone may be added: of two figures the smaller holds."""
    names = {"config": config.process_config is not None, "enforcer": config.enforcer != "auto"}
    names["policy"] = config.policy is not None and replace(config.policy, limits=None) != OWN_POLICY
    for name in (name for name, is_said in names.items() if is_said):
        raise InvalidRequest("the backend has its own", field=name, hint="leave it out, or name the backend by text")


#: Builtins alone, so that it also works where no process may be made.
_LIST_TOOLS = """\
set -f; IFS=:
for directory in $PATH; do
    set +f
    for file in "$directory"/*; do
        if [ -f "$file" ] && [ -x "$file" ]; then printf '%s\\0' "${file##*/}"; fi
    done
done
"""
