"""WasmGuest: how a `Sandbox(backend="wasm")` runs things. Commands are the toolbox's; files are WASI preopens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from warmcell.backends.wasm.launcher import launcher
from warmcell.backends.wasm.module_source import source_from_code
from warmcell.backends.wasm.run_request import Fetch, Preopen, RunRequest
from warmcell.backends.wasm.supervisor import DEFAULT_MOST_WORKERS, QUEUE_SECONDS, Supervisor
from warmcell.backends.wasm.toolbox_runner import ToolboxRunner
from warmcell.core.errors import InvalidRequest
from warmcell.core.types import MIB, BackendCapabilities, EffectiveLimits, ExecResult, Language
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.run import Run
from warmcell.lifetime.runs import Runs
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import effective_limits
from warmcell.runner.listening import Listener
from warmcell.toolbox.loader import present_commands
from warmcell.toolbox.runtime import wasmtime_directory
from warmcell.workspace.mount_points import WORK, MountPoint
from warmcell.workspace.private_directory import PrivateDirectory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from warmcell.core.output_events import StreamEvent
else:
    Protocol = object  # type checkers alone look at these

_TEMPORARY = "/tmp"
_WORLD = {"HOME": WORK, "PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": _TEMPORARY, "LANG": "C.UTF-8"}
_COMMAND_LINES = {
    Language.COMMAND: ("sh", "-c"),
    Language.PYTHON: ("python3", "-c"),
    Language.JAVASCRIPT: ("node", "-e"),
}


class GuestConfig(Protocol):
    """What a sandbox says about itself."""

    @property
    def work_dir(self) -> str: ...
    @property
    def is_work_writable(self) -> bool: ...
    @property
    def mounts(self) -> tuple[MountPoint, ...]: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def memory_limit_mb(self) -> int | None: ...
    @property
    def fuel(self) -> int | None: ...
    @property
    def policy(self) -> SandboxPolicy | None: ...
    @property
    def fetch(self) -> Callable[[bytes], Awaitable[bytes]] | None: ...


class Job(Protocol):
    """What one run says about itself."""

    @property
    def cwd(self) -> str: ...
    @property
    def stdin(self) -> str | bytes | None: ...
    @property
    def timeout(self) -> float: ...
    @property
    def follow(self) -> Callable[[AsyncIterator[StreamEvent]], Awaitable[ExecResult]] | None: ...


class WasmGuest:
    """Runs things for one sandbox, many at a time."""

    def __init__(self, config: GuestConfig) -> None:
        wasmtime_directory()
        self._config = config
        try:
            self._temporary = PrivateDirectory("tmp")
        except OSError as error:
            raise host_failure(error, "make a temporary directory") from error
        self._supervisor = Supervisor()
        self._toolbox = ToolboxRunner(self._supervisor)
        self._runs = Runs("wasm", DEFAULT_MOST_WORKERS, QUEUE_SECONDS)

    async def command(self, argv: Sequence[str], job: Job) -> ExecResult:
        """One program with its arguments, no shell in between; `CommandNotFound` when there is no such program."""
        if job.follow is not None:
            from warmcell.backends.streaming import stream

            return await job.follow(stream(lambda listener: self._command(argv, job, listener)))
        return await self._command(argv, job)

    def script_blocking(self, script: str, job: Job, listener: Listener | None = None) -> ExecResult:
        """`script` in the calling thread, for programs without an event loop; the listener hears it, in this thread."""
        return self._runs.run_blocking(lambda run: self._run(("sh", "-c", script), job, None, run, listener))

    async def _command(self, argv: Sequence[str], job: Job, listener: Listener | None = None) -> ExecResult:
        if self._config.fetch is None:
            return await self._runs.run(lambda run: self._run(argv, job, None, run, listener))
        from warmcell.backends.wasm.run_fetches import RunFetches

        fetches = RunFetches(self._config.fetch)
        try:
            return await self._runs.run(lambda run: self._run(argv, job, fetches, run, listener))
        finally:
            await fetches.end()

    async def script(self, script: str, job: Job) -> ExecResult:
        return await self.command(("sh", "-c", script), job)

    async def code(self, code: str | bytes, language: Language | str, job: Job) -> ExecResult:
        if language is Language.WASM:
            if job.follow is not None:
                from warmcell.backends.streaming import stream

                return await job.follow(stream(lambda listener: self._module(code, job, listener)))
            return await self._module(code, job)
        if language not in _COMMAND_LINES or not isinstance(code, str):
            raise InvalidRequest(
                f"the wasm sandbox has no {language}", field="language", hint="use Sandbox(backend='process')"
            )
        return await self.command((*_COMMAND_LINES[Language(language)], code), job)

    async def tools(self) -> list[str]:
        from warmcell.lifetime.threads import in_thread

        return await in_thread(present_commands)

    def capabilities(self) -> BackendCapabilities:
        """The module's own language and those that the toolbox has a command for."""
        from warmcell.backends.wasm.backend import ENFORCED_LIMITS

        present = present_commands()
        languages = [name for name, command in _COMMAND_LINES.items() if command[0] in present]
        return BackendCapabilities((*languages, Language.WASM), launcher().isolation_class, ENFORCED_LIMITS)

    async def aclose(self) -> None:
        from warmcell.lifetime.threads import in_thread

        await in_thread(self.close)

    def close(self) -> None:
        self._runs.close()
        self._supervisor.close()
        self._temporary.close()

    async def _module(self, code: str | bytes, job: Job, listener: Listener | None = None) -> ExecResult:
        return await self._runs.run(lambda run: self._run_module(code, job, run, listener))

    def _run(
        self, argv: Sequence[str], job: Job, fetch: Fetch | None, run: Run, listener: Listener | None
    ) -> ExecResult:
        limits = self._limits()
        return self._toolbox.run_command(
            argv,
            timeout=job.timeout,
            env={**_WORLD, **self._config.env},
            cwd=job.cwd,
            stdin=_as_bytes(job.stdin),
            memory_limit_mb=limits.memory_mb,
            fuel=self._config.fuel,
            output_bytes=limits.output_bytes,
            preopens=self._preopens(),
            fetch=fetch,
            file_bytes=limits.disk_mb * MIB,
            cpu_seconds=limits.cpu_seconds,
            open_files=limits.open_files,
            run=run,
            listener=listener,
        )

    def _run_module(self, code: str | bytes, job: Job, run: Run, listener: Listener | None) -> ExecResult:
        limits = self._limits()
        request = RunRequest(
            argv=("main.wasm",),
            timeout=job.timeout,
            memory_limit_mb=limits.memory_mb,
            env={**_WORLD, **self._config.env, "PWD": job.cwd},
            stdin=_as_bytes(job.stdin),
            fuel=self._config.fuel,
            output_bytes=limits.output_bytes,
            preopens=self._preopens(),
            file_bytes=limits.disk_mb * MIB,
            cpu_seconds=limits.cpu_seconds,
            open_files=limits.open_files,
            listener=listener,
        )
        return self._supervisor.run(source_from_code(code), request, run)

    def _limits(self) -> EffectiveLimits:
        return effective_limits(self._config.policy or SandboxPolicy(), memory_mb=self._config.memory_limit_mb)

    def _preopens(self) -> list[Preopen]:
        found = [Preopen(self._config.work_dir, WORK, self._config.is_work_writable)]
        mounts = [mount for mount in self._config.mounts if mount.guest_path != WORK]
        found += [Preopen(mount.host, mount.guest_path, mount.writable) for mount in mounts]
        if all(mount.guest_path != _TEMPORARY for mount in mounts):
            found.append(Preopen(self._temporary.path, _TEMPORARY, True))
        return found


def _as_bytes(stdin: str | bytes | None) -> bytes:
    if stdin is None:
        return b""
    return stdin if isinstance(stdin, bytes) else stdin.encode("utf-8", "surrogatepass")
