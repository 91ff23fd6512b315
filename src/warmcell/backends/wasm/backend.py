"""WasmBackend: runs WASI modules in wasmtime, in worker processes that can be killed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from warmcell.backends.base import BackendBase
from warmcell.backends.built import Program
from warmcell.backends.streaming import refuse_descriptor, stream
from warmcell.backends.wasm.launcher import worker_launcher
from warmcell.backends.wasm.module_loader import ModuleCache, shared_cache
from warmcell.backends.wasm.pool import MOST_WORKERS
from warmcell.backends.wasm.run_request import Preopen, RunRequest, check_fuel, run_limits, source_from_code
from warmcell.backends.wasm.supervisor import DEFAULT_MOST_WORKERS, QUEUE_SECONDS, Supervisor
from warmcell.core.errors import BuildFailed, InvalidRequest
from warmcell.core.output_events import StreamEvent
from warmcell.core.request_checks import check_whole
from warmcell.core.run_record import RunRecord
from warmcell.core.types import (
    BackendCapabilities,
    EffectiveLimits,
    EnforcedLimits,
    ExecRequest,
    ExecResult,
    Language,
    Limits,
    check_timeout,
)
from warmcell.lifetime.run import Run
from warmcell.lifetime.runs import Runs
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.places import WORK_DIR
from warmcell.policy.resolve import effective_limits
from warmcell.runner.listening import Listener
from warmcell.toolbox.runtime import wasmtime_directory
from warmcell.workspace.private_directory import RunDirectory, check_room

_NAME = "wasm"
ENFORCED_LIMITS = EnforcedLimits(
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


class WasmBackend(BackendBase):
    """Runs `language="wasm"`: a binary module (bytes or base64 text) or WAT text with WASI preview 1 and `_start`.

    A guest has its standard streams and the request's arguments, environment and files: no other files, no network, no
    processes. `fuel` limits the instructions of every run, besides its time. `limits` caps what requests may ask for.
    At most `max_workers` runs are active; others queue for up to `queue_timeout` seconds, then raise `BackendBusy`.
    """

    def __init__(
        self,
        *,
        fuel: int | None = None,
        limits: Limits | None = None,
        max_workers: int = DEFAULT_MOST_WORKERS,
        queue_timeout: float = QUEUE_SECONDS,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        check_fuel(fuel)
        check_whole("max_workers", max_workers, 1, MOST_WORKERS)
        options: dict[str, Any] = {"fuel": fuel, "limits": limits, "max_workers": max_workers, "cache_dir": cache_dir}
        #: How another process makes such a backend.
        self.recipe = partial(WasmBackend, queue_timeout=queue_timeout, **options)
        self._fuel = fuel
        self._policy = SandboxPolicy(limits=limits)
        queue_timeout = check_timeout(queue_timeout, "queue_timeout")
        cache = shared_cache() if cache_dir is None else ModuleCache(os.path.abspath(cache_dir))
        self._supervisor = Supervisor(cache, queue_timeout=queue_timeout)
        self._runs = Runs(self.name, max_workers, queue_timeout)

    @property
    def name(self) -> str:
        return _NAME

    def capabilities(self) -> BackendCapabilities:
        return BackendCapabilities((Language.WASM,), worker_launcher().isolation_class, ENFORCED_LIMITS)

    async def execute(self, request: ExecRequest, *, listener: Listener | None = None) -> ExecResult:
        """Runs in a thread; cancelling the task kills the run."""
        with RunRecord(_NAME, request) as record:
            record.result = await self._runs.run(lambda run: self._execute(request, run, listener))
            return record.result

    def stream(self, request: ExecRequest, *, stdin: int = -1) -> AsyncIterator[StreamEvent]:
        """Output as the guest writes it, then a `ResultEvent`. Closing the iterator ends the run."""
        refuse_descriptor(self.name, stdin)
        return stream(lambda listener: self.execute(request, listener=listener))

    def execute_blocking(self, request: ExecRequest, *, run: Run | None = None) -> ExecResult:
        """Like `execute`, in the calling thread and without an event loop. By `run`, another thread can cancel it."""
        with RunRecord(_NAME, request) as record:
            record.result = self._runs.run_blocking(lambda run: self._execute(request, run), run)
            return record.result

    async def build(self, request: ExecRequest) -> Program:
        """Compiles the module once. Raises `BuildFailed` if it is invalid."""
        return await self._runs.run(lambda run: self._build(request, run))

    def build_blocking(self, request: ExecRequest) -> Program:
        """Like `build`, in the calling thread."""
        return self._runs.run_blocking(lambda run: self._build(request, run))

    def _build(self, request: ExecRequest, run: Run) -> Program:
        self._check_language(request)
        try:
            self._supervisor.load(source_from_code(request.code), self._fuel is not None, run)
        except InvalidRequest as refused:
            raise BuildFailed(ExecResult(stderr=f"{refused.message}\n", exit_code=1)) from None
        return Program(self.name, request, self._runs, self._execute)

    def worker_pids(self) -> list[int]:
        """The process ids of this program's WASM workers, busy or idle."""
        return sorted(self._supervisor.pool.pids)

    def close(self) -> None:
        self._runs.close()
        self._end_supervisors()
        self._supervisor.close()

    def _execute(self, request: ExecRequest, run: Run, listener: Listener | None = None) -> ExecResult:
        self._check_language(request)
        source = source_from_code(request.code)
        limits = effective_limits(self._policy, request.limits, request.memory_limit_mb)
        if not request.files and not request.fetch_files:
            return self._supervisor.run(source, self._run_request(request, limits, listener), run)
        files: Mapping[str, bytes] = request.files  # type: ignore[assignment]  # ExecRequest encodes text
        check_room(files, limits.disk_mb)
        with ExitStack() as cleanup:
            directory = RunDirectory(files, cleanup)
            # By both names: how a relative path is resolved depends on the language's library.
            preopens = tuple(Preopen(directory.path, path, writable=True) for path in (".", WORK_DIR))
            prepared = self._run_request(request, limits, listener, preopens)
            return directory.run_and_fetch(lambda: self._supervisor.run(source, prepared, run), request.fetch_files)

    def _check_language(self, request: ExecRequest) -> None:
        if request.language is not Language.WASM:
            raise InvalidRequest(
                f"WasmBackend runs wasm, not {request.language}", field="language", hint="use ProcessBackend"
            )
        wasmtime_directory()

    def _run_request(
        self,
        request: ExecRequest,
        limits: EffectiveLimits,
        listener: Listener | None,
        preopens: tuple[Preopen, ...] = (),
    ) -> RunRequest:
        return RunRequest(
            ("main.wasm", *request.args),
            run_limits(request.timeout, limits, self._fuel, has_files=bool(preopens)),
            request.env,
            b"" if request.stdin is None else request.stdin_bytes,
            preopens,
            listener=listener,
            is_validated=True,
            has_own_directories=bool(preopens),
        )
