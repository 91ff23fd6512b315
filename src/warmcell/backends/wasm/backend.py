"""WasmBackend: WASI modules in wasmtime, in killable worker processes. Needs no isolation from the operating system."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import ExitStack

from warmcell.backends.built import Program
from warmcell.backends.many import Requests, in_step, run_many
from warmcell.backends.streaming import refuse_descriptor, stream
from warmcell.backends.wasm.launcher import launcher
from warmcell.backends.wasm.module_cache import ModuleCache, shared_cache
from warmcell.backends.wasm.module_source import source_from_code
from warmcell.backends.wasm.pool import MOST_WORKERS
from warmcell.backends.wasm.run_request import Preopen, RunRequest, check_fuel
from warmcell.backends.wasm.supervisor import DEFAULT_MOST_WORKERS, QUEUE_SECONDS, Supervisor
from warmcell.core.errors import BuildFailed, InvalidRequest
from warmcell.core.outcomes import Outcome
from warmcell.core.output_events import StreamEvent
from warmcell.core.run_record import RunRecord
from warmcell.core.types import (
    MIB,
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
from warmcell.lifetime.threads import in_thread
from warmcell.policy.model import SandboxPolicy
from warmcell.policy.places import WORK_DIR
from warmcell.policy.resolve import effective_limits
from warmcell.runner.listening import Listener
from warmcell.toolbox.runtime import wasmtime_directory
from warmcell.workspace.run_directory import RunDirectory, check_room

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


class WasmBackend:
    """Runs `language="wasm"`: a binary module (bytes or base64 text) or WAT text with WASI preview 1 and `_start`.

    A guest has its standard streams, the request's arguments, environment and files, and nothing else: no other files,
    no network, no processes.
    `fuel` bounds the number of instructions of every run, on top of its time. `limits` caps what requests may ask for.
    `max_workers` runs go on at a time; the rest wait in order for `queue_timeout` seconds, then `BackendBusy`.
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
        if isinstance(max_workers, bool) or not isinstance(max_workers, int) or not 1 <= max_workers <= MOST_WORKERS:
            raise InvalidRequest(f"must be a whole number from 1 to {MOST_WORKERS}", field="max_workers")
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
        return BackendCapabilities((Language.WASM,), launcher().isolation_class, ENFORCED_LIMITS)

    async def execute(self, request: ExecRequest, *, listener: Listener | None = None) -> ExecResult:
        """Runs in a thread; cancelling the task kills the run."""
        with RunRecord(_NAME, request) as record:
            record.result = await self._runs.run(lambda run: self._execute(request, run, listener))
            return record.result

    def stream(self, request: ExecRequest, *, stdin: int = -1) -> AsyncIterator[StreamEvent]:
        """Output as the guest writes it, last a `ResultEvent`; leaving it ends the run. See `backends.streaming`."""
        refuse_descriptor(self.name, stdin)
        return stream(lambda listener: self.execute(request, listener=listener))

    def stream_blocking(self, request: ExecRequest, *, stdin: int = -1) -> Iterator[StreamEvent]:
        """The same for code without an event loop."""
        return in_step(self.stream(request, stdin=stdin))

    def execute_blocking(self, request: ExecRequest) -> ExecResult:
        """The same, in the calling thread and without an event loop."""
        with RunRecord(_NAME, request) as record:
            record.result = self._runs.run_blocking(lambda run: self._execute(request, run))
            return record.result

    async def build(self, request: ExecRequest) -> Program:
        """Compiles the module, once. `BuildFailed` says why it is none."""
        return await self._runs.run(lambda run: self._build(request, run))

    def build_blocking(self, request: ExecRequest) -> Program:
        """The same in the calling thread."""
        return self._runs.run_blocking(lambda run: self._build(request, run))

    def _build(self, request: ExecRequest, run: Run) -> Program:
        self._check_language(request)
        try:
            self._supervisor.load(source_from_code(request.code), self._fuel is not None, run)
        except InvalidRequest as refused:
            raise BuildFailed(ExecResult(stderr=f"{refused.message}\n", exit_code=1)) from None
        return Program(self.name, request, self._runs, self._execute)

    def run_many(self, requests: Requests, concurrency: int | None = None) -> AsyncIterator[Outcome]:
        """Outcomes as they finish, `concurrency` runs at a time (None: from the processors). See `backends.many`."""
        return run_many(self.execute, requests, concurrency)

    def run_many_blocking(self, requests: Iterable[ExecRequest], concurrency: int | None = None) -> Iterator[Outcome]:
        """The same for code without an event loop."""
        return in_step(self.run_many(requests, concurrency))

    def worker_pids(self) -> list[int]:
        """The processes of this program that run WASM guests at the moment, or wait to."""
        return sorted(self._supervisor.pool.pids)

    async def aclose(self) -> None:
        """Ends all runs, and the workers unless another backend or sandbox of this program uses them."""
        await in_thread(self.close)

    def __enter__(self) -> WasmBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._runs.close()
        self._supervisor.close()

    def _execute(self, request: ExecRequest, run: Run, listener: Listener | None = None) -> ExecResult:
        self._check_language(request)
        source = source_from_code(request.code)
        limits = effective_limits(self._policy, request.limits, request.memory_limit_mb)
        if not request.files and not request.fetch_files:
            return self._supervisor.run(source, self._run_request(request, limits, listener), run)
        files: Mapping[str, bytes] = request.files  # type: ignore[assignment]  # text was encoded
        check_room(files, limits.disk_mb)
        with ExitStack() as cleanup:
            directory = RunDirectory(files, cleanup)
            # By both names: what a program makes of a relative path depends on its language's library.
            preopens = tuple(Preopen(directory.path, place, writable=True) for place in (".", WORK_DIR))
            wanted = self._run_request(request, limits, listener, preopens)
            return directory.around(lambda: self._supervisor.run(source, wanted, run), request.fetch_files)

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
            argv=("main.wasm", *request.args),
            timeout=request.timeout,
            memory_limit_mb=limits.memory_mb,
            env=request.env,
            stdin=b"" if request.stdin is None else request.stdin_bytes,
            fuel=self._fuel,
            output_bytes=limits.output_bytes,
            cpu_seconds=limits.cpu_seconds,
            open_files=limits.open_files,
            preopens=preopens,
            file_bytes=limits.disk_mb * MIB if preopens else None,
            listener=listener,
            was_checked=True,
        )
