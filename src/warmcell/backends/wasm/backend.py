"""WasmBackend: WASI modules in wasmtime, in killable worker processes. Needs no isolation from the operating system."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from warmcell.backends.wasm.cancellation import Cancellation
from warmcell.backends.wasm.launcher import launcher
from warmcell.backends.wasm.module_cache import ModuleCache, default_directory
from warmcell.backends.wasm.module_source import source_from_code
from warmcell.backends.wasm.pool import DEFAULT_MOST_WORKERS
from warmcell.backends.wasm.run_request import RunRequest, check_fuel
from warmcell.backends.wasm.runtime import wasmtime_directory
from warmcell.backends.wasm.supervisor import Supervisor
from warmcell.backends.wasm.threads import RunThreads
from warmcell.core.errors import BackendUnavailable, InvalidRequest
from warmcell.core.types import (
    BackendCapabilities,
    EnforcedLimits,
    ExecRequest,
    ExecResult,
    Language,
    Limits,
)
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.resolve import effective_limits

_ENFORCED_LIMITS = EnforcedLimits(
    timeout=True,
    memory=True,
    network_isolation=True,
    filesystem_read_isolation=True,
    filesystem_write_isolation=True,
    environment_isolation=True,
    process_limit=True,
    disk_limit=True,
    output_limit=True,
    cpu=True,
)


class WasmBackend:
    """Runs `language="wasm"`: a binary module (bytes or base64 text) or WAT text with WASI preview 1 and `_start`.

    A guest has its standard streams, the request's environment and nothing else: no files, no network, no processes.
    `fuel` bounds the number of instructions of every run, on top of its time. `limits` caps what requests may ask for.
    """

    def __init__(
        self,
        *,
        fuel: int | None = None,
        limits: Limits | None = None,
        max_workers: int = DEFAULT_MOST_WORKERS,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        check_fuel(fuel)
        if isinstance(max_workers, bool) or not isinstance(max_workers, int) or not 1 <= max_workers <= 256:
            raise InvalidRequest("must be a whole number from 1 to 256", field="max_workers")
        self._fuel = fuel
        self._limits = limits
        cache = ModuleCache(Path(cache_dir).absolute() if cache_dir is not None else default_directory())
        self._supervisor = Supervisor(max_workers, cache)
        self._threads = RunThreads()
        self._is_closed = False

    @property
    def name(self) -> str:
        return "wasm"

    def capabilities(self) -> BackendCapabilities:
        return BackendCapabilities((Language.WASM,), launcher().isolation_class, _ENFORCED_LIMITS)

    async def execute(self, request: ExecRequest) -> ExecResult:
        """Runs in a thread; cancelling the task kills the run."""
        return await self._threads.run(lambda cancellation: self._execute(request, cancellation))

    def execute_blocking(self, request: ExecRequest) -> ExecResult:
        """The same, in the calling thread and without an event loop."""
        return self._execute(request, Cancellation())

    def worker_pids(self) -> list[int]:
        """The processes that run guests at the moment, or wait to."""
        return sorted(self._supervisor.pool.pids)

    async def aclose(self) -> None:
        """Ends all runs and workers."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> WasmBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_closed = True
        self._supervisor.close()
        self._threads.close()

    def _execute(self, request: ExecRequest, cancellation: Cancellation) -> ExecResult:
        if self._is_closed:
            raise BackendUnavailable("the WASM backend was closed", hint="make a new one")
        if request.language is not Language.WASM:
            raise InvalidRequest(
                f"WasmBackend runs wasm, not {request.language}", field="language", hint="use ProcessBackend"
            )
        wasmtime_directory()
        source = source_from_code(request.code)
        return self._supervisor.run(source, self._run_request(request), cancellation=cancellation)

    def _run_request(self, request: ExecRequest) -> RunRequest:
        limits = effective_limits(SandboxPolicy(limits=self._limits), request.limits, request.memory_limit_mb)
        return RunRequest(
            argv=("main.wasm",),
            timeout=request.timeout,
            memory_limit_mb=limits.memory_mb,
            env=request.env,
            stdin=request.stdin_bytes,
            fuel=self._fuel,
            output_bytes=limits.output_bytes,
            cpu_seconds=limits.cpu_seconds,
            open_files=limits.open_files,
        )
