"""WasmGuest: runs code for a `Sandbox(backend="wasm")`. Commands come from the toolbox; files are WASI preopens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence

from warmcell.backends.wasm.launcher import worker_launcher
from warmcell.backends.wasm.run_request import Fetch, Preopen, RunRequest, run_limits, source_from_code
from warmcell.backends.wasm.supervisor import DEFAULT_MOST_WORKERS, QUEUE_SECONDS, Supervisor
from warmcell.backends.wasm.toolbox_runner import ToolboxRunner
from warmcell.core.errors import InvalidRequest
from warmcell.core.types import BackendCapabilities, ExecResult, Language
from warmcell.guest.wasm.protocol import RunLimits
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
    Protocol = object  # only type checkers use it

_TEMPORARY = "/tmp"
_DEFAULT_ENV = {"HOME": WORK, "PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": _TEMPORARY, "LANG": "C.UTF-8"}
_COMMAND_LINES = {
    Language.COMMAND: ("sh", "-c"),
    Language.PYTHON: ("python3", "-c"),
    Language.JAVASCRIPT: ("node", "-e"),
}


class WasmGuestConfig(Protocol):
    """The settings of a sandbox that matter here."""

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
    def find_protected(self, directory: str) -> tuple[str, ...]: ...


class SandboxCall(Protocol):
    """The settings of one run that matter here."""

    @property
    def cwd(self) -> str: ...
    @property
    def stdin(self) -> str | bytes | None: ...
    @property
    def timeout(self) -> float: ...
    @property
    def follow(self) -> Callable[[AsyncIterator[StreamEvent]], Awaitable[ExecResult]] | None: ...


class WasmGuest:
    """Runs commands and code for one sandbox, concurrently."""

    def __init__(self, config: WasmGuestConfig) -> None:
        wasmtime_directory()
        self._config = config
        #: Found once, as in the process cage: the guest can create such paths later, which `diff` then flags.
        self._preopens_found: list[Preopen] | None = None
        try:
            self._temporary = PrivateDirectory("tmp", is_named=True)
        except OSError as error:
            raise host_failure(error, "make a temporary directory") from error
        self._supervisor = Supervisor()
        self._toolbox = ToolboxRunner(self._supervisor)
        self._runs = Runs("wasm", DEFAULT_MOST_WORKERS, QUEUE_SECONDS)

    async def command(self, argv: Sequence[str], call: SandboxCall) -> ExecResult:
        """Runs one program without a shell. Raises `CommandNotFound`."""
        return await _follow(call, lambda listener: self._command(argv, call, listener))

    def script_blocking(self, script: str, call: SandboxCall, listener: Listener | None = None) -> ExecResult:
        """Runs `script` in the calling thread, without an event loop. The listener is called in this thread too."""
        return self._runs.run_blocking(lambda run: self._run(("sh", "-c", script), call, None, run, listener))

    async def _command(self, argv: Sequence[str], call: SandboxCall, listener: Listener | None) -> ExecResult:
        if self._config.fetch is None:
            return await self._runs.run(lambda run: self._run(argv, call, None, run, listener))
        from warmcell.backends.wasm.run_fetches import RunFetches

        fetches = RunFetches(self._config.fetch)
        try:
            return await self._runs.run(lambda run: self._run(argv, call, fetches, run, listener))
        finally:
            await fetches.end()

    async def script(self, script: str, call: SandboxCall) -> ExecResult:
        return await self.command(("sh", "-c", script), call)

    async def code(self, code: str | bytes, language: Language | str, call: SandboxCall) -> ExecResult:
        if language is Language.WASM:
            return await _follow(
                call, lambda listener: self._runs.run(lambda run: self._run_module(code, call, run, listener))
            )
        if language not in _COMMAND_LINES or not isinstance(code, str):
            raise InvalidRequest(
                f"the wasm sandbox does not run {language}", field="language", hint="use Sandbox(backend='process')"
            )
        return await self.command((*_COMMAND_LINES[Language(language)], code), call)

    async def tools(self) -> list[str]:
        from warmcell.lifetime.threads import in_thread

        return await in_thread(present_commands)

    def capabilities(self) -> BackendCapabilities:
        """WebAssembly and the languages that the toolbox has a command for."""
        from warmcell.backends.wasm.backend import ENFORCED_LIMITS

        present = present_commands()
        languages = [name for name, command in _COMMAND_LINES.items() if command[0] in present]
        return BackendCapabilities((*languages, Language.WASM), worker_launcher().isolation_class, ENFORCED_LIMITS)

    async def aclose(self) -> None:
        from warmcell.lifetime.threads import in_thread

        await in_thread(self.close)

    def close(self) -> None:
        self._runs.close()
        self._supervisor.close()
        self._temporary.close()

    def _run(
        self, argv: Sequence[str], call: SandboxCall, fetch: Fetch | None, run: Run, listener: Listener | None
    ) -> ExecResult:
        return self._toolbox.run_command(
            argv,
            self._limits(call),
            env={**_DEFAULT_ENV, **self._config.env},
            cwd=call.cwd,
            stdin=_as_bytes(call.stdin),
            preopens=self._preopens(),
            fetch=fetch,
            listener=listener,
            run=run,
        )

    def _run_module(self, code: str | bytes, call: SandboxCall, run: Run, listener: Listener | None) -> ExecResult:
        env = {**_DEFAULT_ENV, **self._config.env, "PWD": call.cwd}
        stdin, preopens = _as_bytes(call.stdin), self._preopens()
        request = RunRequest(("main.wasm",), self._limits(call), env, stdin, preopens, listener=listener)
        return self._supervisor.run(source_from_code(code), request, run)

    def _limits(self, call: SandboxCall) -> RunLimits:
        config = self._config
        limits = effective_limits(config.policy or SandboxPolicy(), memory_mb=config.memory_limit_mb)
        return run_limits(call.timeout, limits, config.fuel, has_files=True)

    def _preopens(self) -> list[Preopen]:
        if self._preopens_found is None:
            mounts = [mount for mount in self._config.mounts if mount.guest_path != WORK]
            found = [self._preopen(self._config.work_dir, WORK, self._config.is_work_writable)]
            found += [self._preopen(mount.host, mount.guest_path, mount.writable) for mount in mounts]
            if all(mount.guest_path != _TEMPORARY for mount in mounts):
                found.append(Preopen(self._temporary.path, _TEMPORARY, True))
            self._preopens_found = found
        return self._preopens_found

    def _preopen(self, host_path: str, guest_path: str, is_writable: bool) -> Preopen:
        protected = self._config.find_protected(host_path) if is_writable else ()
        return Preopen(host_path, guest_path, is_writable, tuple(path[len(host_path) + 1 :] for path in protected))


async def _follow(
    call: SandboxCall, work: Callable[[Listener | None], Coroutine[object, object, ExecResult]]
) -> ExecResult:
    if call.follow is None:
        return await work(None)
    from warmcell.backends.streaming import stream

    return await call.follow(stream(work))


def _as_bytes(stdin: str | bytes | None) -> bytes:
    if stdin is None:
        return b""
    return stdin if isinstance(stdin, bytes) else stdin.encode("utf-8", "surrogatepass")
