"""Guests: one adapter per backend, so that the rest of `sandbox` knows no backend. None is a process in a cage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from warmcell.core.errors import CommandNotFound, ExecutionFailed, InvalidRequest
from warmcell.core.types import BackendCapabilities, ExecRequest, ExecResult, Language
from warmcell.languages.registry import canonical, lookup_language
from warmcell.lifetime.threads import in_thread
from warmcell.policy.enforcer_support import find_unsupported_fields
from warmcell.policy.model import SandboxPolicy
from warmcell.sandbox.interface import RunOptions
from warmcell.sandbox.local.guest_config import DEFAULT_POLICY, GuestConfig, sandbox_policy, with_limits
from warmcell.workspace.mount_points import WORK

if TYPE_CHECKING:
    from warmcell.backends.process.backend import ProcessBackend
    from warmcell.backends.process.egress import Egress
    from warmcell.backends.process.image import OpenImage
    from warmcell.backends.process.launch import LiveProgram
    from warmcell.backends.process.live import LiveCage
    from warmcell.core.contracts import SandboxBackend
    from warmcell.core.output_events import StreamEvent

#: Program and arguments, directory, and a request for everything else.
CommandCall = Callable[[Sequence[str], str, ExecRequest], Awaitable[ExecResult]]


class Guest(Protocol):
    """Runs things for one sandbox, many at a time. When a call ends or is cancelled, nothing of the run is left."""

    async def command(self, argv: Sequence[str], options: RunOptions, /) -> ExecResult:
        """One program with its arguments, without a shell; `CommandNotFound` if the program does not exist."""
        ...

    async def script(self, script: str, options: RunOptions, /) -> ExecResult: ...

    async def code(self, code: str | bytes, language: Language | str, options: RunOptions, /) -> ExecResult: ...

    async def tools(self) -> list[str]:
        """The commands that `command` finds by a bare name, sorted."""
        ...

    def capabilities(self) -> BackendCapabilities:
        """The languages that it can run on this host, and what is enforced, as measured."""
        ...

    async def aclose(self) -> None: ...


GuestFactory = Callable[["str | SandboxBackend", GuestConfig], Guest]


def make_guest(backend: str | SandboxBackend, config: GuestConfig) -> Guest:
    """The guest for a backend, given by name or as an object."""
    if not isinstance(backend, str):
        return guest_of_backend(backend, config)
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
    """The language's own name. An unknown one is refused, unless the backend comes from another package."""
    row = lookup_language(name) if isinstance(name, str) else None
    return canonical(name) if row is not None or backend in ("process", "wasm") else name


def _refuse_process_settings(backend: str, config: GuestConfig) -> None:
    """A caller that names an interpreter or an enforcer must not get a sandbox without them."""
    names = {**_process_settings(config), "work_path": config.work_path != WORK}
    for name in (name for name, is_set in names.items() if is_set):
        hint = f"leave it out, or use a backend other than {backend!r}"
        raise InvalidRequest("works only with the process backend", field=name, hint=hint)


def _process_settings(config: GuestConfig) -> dict[str, bool]:
    """The settings of a process backend, and whether each is set."""
    return {
        "config": config.process_config is not None,
        "enforcer": config.enforcer != "auto",
        "allow_weaker": config.allow_weaker is not None,
        "image": config.image is not None,
    }


def _refuse_process_policy(policy: SandboxPolicy | None) -> None:
    """WASM applies only the limits of a policy. Grants that it would ignore are refused."""
    if policy is not None and find_unsupported_fields("wasm", policy):
        hint = "use mounts=, fetch_policy= and env="
        raise InvalidRequest("can have nothing but limits with this backend", field="policy", hint=hint)


class ProcessGuest:
    """Real processes, each run in a cage of its own with the work directory; or a backend of another package."""

    def __init__(self, config: GuestConfig, backend: SandboxBackend | None = None, owns_backend: bool = True) -> None:
        if config.fuel is not None:
            raise InvalidRequest("this backend cannot count instructions", field="fuel", hint="use backend='wasm'")
        self._config = config
        self._backend = backend or _process_backend(config)
        self._owns_backend = owns_backend
        self._execute_command: CommandCall | None = None
        self._is_probed = False

    async def command(self, argv: Sequence[str], options: RunOptions) -> ExecResult:
        execute = await self._direct_execute()
        if execute is None:
            return await self._command_by_shell(argv, options)
        request = self.request(command_line(argv), Language.COMMAND, options)
        if options.follow is not None:
            return await options.follow(self._stream_method("stream_command")(argv, options.cwd, request))
        return await execute(argv, options.cwd, request)

    async def _direct_execute(self) -> CommandCall | None:
        """The backend's method to start a program without a shell; None if it has none or its enforcer cannot."""
        if not self._is_probed:
            execute = getattr(self._backend, "execute_command", None)
            if execute is not None and await in_thread(self._backend.takes_commands):  # type: ignore[attr-defined]
                self._execute_command = execute
            self._is_probed = True
        return self._execute_command

    async def _command_by_shell(self, argv: Sequence[str], options: RunOptions) -> ExecResult:
        """Looks the command up in a run of its own first: afterwards the command could have forged the answer."""
        lookup = await self.script(
            f"command -v {quote(argv[0])} >/dev/null 2>&1", replace(options, stdin=None, follow=None)
        )
        if not lookup.ok:
            raise CommandNotFound(argv[0])
        return await self.script(command_line(argv), options)

    async def script(self, script: str, options: RunOptions) -> ExecResult:
        return await self.code(in_directory(script, options.cwd, self._config.work_path), Language.COMMAND, options)

    async def code(self, code: str | bytes, language: Language | str, options: RunOptions) -> ExecResult:
        request = self.request(code, language, options)
        if options.follow is not None:
            return await options.follow(self._stream_method("stream")(request))
        return await self._backend.execute(request)

    def _stream_method(self, name: str) -> Callable[..., AsyncIterator[StreamEvent]]:
        """Optional in the backend contract, so a backend of another package may lack it."""
        method: Callable[..., AsyncIterator[StreamEvent]] | None = getattr(self._backend, name, None)
        if method is None:
            reason = f"the backend {self._backend.name!r} cannot stream output"
            raise InvalidRequest(reason, field="on_stdout", hint="leave on_stdout and on_stderr out")
        return method

    def request(self, code: str | bytes, language: Language | str, options: RunOptions) -> ExecRequest:
        config = self._config
        return ExecRequest(language, code, options.timeout, options.stdin, config.memory_limit_mb, config.env)

    async def tools(self) -> list[str]:
        """Searches the PATH of the guest: the cage may lack programs of the host, or have others."""
        listing = await self.code(_LIST_TOOLS, Language.COMMAND, RunOptions(self._config.work_path))
        if listing.stdout_truncated:
            reason = "is too small for the list of commands"
            raise InvalidRequest(reason, field="limits.output_bytes", hint="raise Limits(output_bytes=...)")
        if not listing.ok:
            raise ExecutionFailed(f"could not list the commands of the sandbox: {listing.stderr.strip()}")
        return sorted({name.decode("utf-8", "replace") for name in listing.stdout_bytes.split(b"\0") if name})

    def capabilities(self) -> BackendCapabilities:
        return self._backend.capabilities()

    @property
    def has_image(self) -> bool:
        return getattr(self._backend, "image", None) is not None

    @property
    def shell(self) -> str | None:
        """The path of the guests' shell; None: the host's."""
        return None if self._image_in_use is None else self._image_in_use.find_program_of(Language.COMMAND)

    @property
    def image_session_languages(self) -> tuple[Language, ...]:
        """Of a guest with an image."""
        return () if self._image_in_use is None else self._image_in_use.session_languages

    @property
    def _image_in_use(self) -> OpenImage | None:
        return getattr(self._backend, "opened_image", None)

    def session_python(self, language: str) -> str | None:
        """The image's Python for a session in this language; None: the agent's. Refuses what the image cannot run."""
        if self._image_in_use is None:
            return None
        known = self._image_in_use.session_languages
        if language not in known:
            reason = f"{language} sessions do not run in this image"
            hint = f"it has programs for {', '.join(known) or 'none'}; python needs python3, command needs bash"
            raise InvalidRequest(reason, field="language", hint=hint)
        is_python = language == Language.PYTHON
        return self._image_in_use.find_program_of(Language.PYTHON) if is_python else None

    @property
    def egress(self) -> Egress | None:
        """The egress through a proxy; None if guests have no network, or the host's own."""
        return getattr(self._backend, "egress", None) if self._owns_backend else None

    @property
    def has_open_network(self) -> bool:
        """Whether guests use the host's network, without a proxy."""
        policy = getattr(self._backend, "policy", None)
        return policy is not None and policy.allow_network

    @property
    def has_live_cage(self) -> bool:
        return hasattr(self._backend, "live_cage")

    async def live_cage(self) -> LiveCage:
        """A new live cage for this sandbox."""
        config = self._config
        cage: LiveCage = await self._live_method("live_cage")(
            env=config.env, memory_limit_mb=config.memory_limit_mb, idle_timeout=config.idle_timeout
        )
        return cage

    def adopt(self, sibling: object) -> None:
        """Before it is used: reuses what a sandbox with the same settings has found on this host."""
        from warmcell.backends.process.backend import ProcessBackend

        if not (self._owns_backend and isinstance(sibling, ProcessGuest) and isinstance(self._backend, ProcessBackend)):
            return
        if isinstance(sibling._backend, ProcessBackend):
            self._backend.adopt(sibling._backend)

    async def live_program(self, request: ExecRequest) -> LiveProgram | ExecResult:
        """The program to start in the live cage; the result of its build if that failed."""
        program: LiveProgram | ExecResult = await self._live_method("live_program")(request)
        return program

    def _live_method(self, name: str) -> Callable[..., Awaitable[Any]]:
        method: Callable[..., Awaitable[Any]] | None = getattr(self._backend, name, None)
        if method is None:
            raise no_live_cage(self._backend.name)
        return method

    async def aclose(self) -> None:
        if self._owns_backend:
            await self._backend.aclose()


def no_live_cage(backend: str) -> InvalidRequest:
    """The error for a backend without live cages."""
    reason = f"the backend {backend!r} cannot keep programs running between calls"
    return InvalidRequest(reason, field="backend", hint="use Sandbox(backend='process')")


def _process_backend(config: GuestConfig) -> ProcessBackend:
    """Guests may reach what the fetch policy allows, unless the sandbox policy has network rules of its own."""
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
        allow_weaker=config.allow_weaker,
        image=config.image,
        user=config.user,
        overlay=config.overlay,
    )


def guest_of_backend(backend: SandboxBackend, config: GuestConfig) -> Guest:
    """For a backend object: its configuration and policy apply, and the work directory is added.

    A `FakeBackend` is used as it is and stays its owner's. Backends of other packages cannot be given a directory.
    """
    from warmcell.backends.fake import FakeBackend
    from warmcell.backends.process.backend import ProcessBackend

    if isinstance(backend, FakeBackend):
        _refuse_process_settings("fake", config)
        return ProcessGuest(config, backend, owns_backend=False)
    if not isinstance(backend, ProcessBackend):
        hint = "pass a ProcessBackend, a FakeBackend, or the name of a backend"
        raise InvalidRequest(f"a {type(backend).__name__} cannot be given a work directory", field="backend", hint=hint)
    _refuse_duplicates(config)
    if backend.enforcer is None:
        raise InvalidRequest("has no enforcer, and a sandbox needs one", field="backend", hint="give it an enforcer")
    policy = backend.policy if config.policy is None else with_limits(backend.policy, config.policy.limits)
    own = {"process_config": backend.config, "enforcer": backend.enforcer, "allow_weaker": backend.allow_weaker}
    config = replace(config, image=backend.image, user=backend.user)
    return ProcessGuest(replace(config, policy=policy, **own))  # type: ignore[arg-type]


def _refuse_duplicates(config: GuestConfig) -> None:
    """Only limits may be added; the smaller of two applies."""
    names = _process_settings(config)
    names["policy"] = config.policy is not None and replace(config.policy, limits=None) != DEFAULT_POLICY
    for name in (name for name, is_set in names.items() if is_set):
        raise InvalidRequest("the backend already has one", field=name, hint="leave it out, or name the backend")


#: Shell builtins only, so that it also works where new processes are denied.
_LIST_TOOLS = """\
set -f; IFS=:
for directory in $PATH; do
    set +f
    for file in "$directory"/*; do
        if [ -f "$file" ] && [ -x "$file" ]; then printf '%s\\0' "${file##*/}"; fi
    done
done
"""


def command_line(argv: Sequence[str]) -> str:
    """A script that runs exactly this argv. Every word is quoted, so none is a keyword, an assignment or an option."""
    return " ".join(quote(word) for word in argv)


def in_directory(script: str, cwd: str, start_dir: str = WORK) -> str:
    """The script, started in a directory. `cd` is on the first line, so that line numbers in messages stay right."""
    return script if cwd == start_dir else f"cd {quote(cwd)} || exit 126; {script}"


def quote(word: str) -> str:
    """Always in quotes, unlike `shlex.quote`, which leaves "A=b" bare: that would be an assignment."""
    return "'" + word.replace("'", "'\"'\"'") + "'"
