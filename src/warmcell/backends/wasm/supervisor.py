"""Runs modules: leases a worker, loads the module, starts the run, waits for its exit, and cleans up."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

from warmcell.backends.wasm.channel import WorkerDied, WorkerTimedOut
from warmcell.backends.wasm.host_calls import CommandModules, HostCalls
from warmcell.backends.wasm.launcher import worker_launcher
from warmcell.backends.wasm.lease import Lease, keep_spare
from warmcell.backends.wasm.module_cache import ModuleCache, shared_cache
from warmcell.backends.wasm.module_loader import LoadRequest, ModuleLoader
from warmcell.backends.wasm.module_source import ModuleSource
from warmcell.backends.wasm.pending_request import (
    HostCallHandler,
    PendingRequest,
    RequestLimits,
    WorkerOverCpu,
    WorkerOverMemory,
)
from warmcell.backends.wasm.pool import WorkerPool, WorkerQuery, WorkerUnusable, program_pool
from warmcell.backends.wasm.results import RunContext, enforcement, make_result
from warmcell.backends.wasm.run_request import HostDirectory, Mounts, Preopen, RunRequest, resolve_preopens
from warmcell.backends.wasm.worker_handle import WorkerHandle
from warmcell.core.errors import BackendUnavailable, ExecutionFailed, SandboxError
from warmcell.core.types import MIB, ExecResult
from warmcell.guest.wasm.protocol import ExitReport, GuestDirectory, ProtocolViolation, RunSpec, decode_exit
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.run import Run
from warmcell.runner.listening import DeliveringCapture, Listener
from warmcell.runner.streams import Capture
from warmcell.toolbox.runtime import wasmtime_version

#: Per backend or sandbox.
DEFAULT_MOST_WORKERS = 32
QUEUE_SECONDS = 60.0
#: For compiling a caller's module when it is built without being run.
BUILD_SECONDS = 60.0
#: The epoch ends a run at its deadline; the supervisor kills the worker this much later.
GRACE_SECONDS = 0.2
#: For tables, the runtime's own structures and the guest's stack, on top of linear memory.
_OVERHEAD_BYTES = 96 * MIB
#: The worker holds several copies of standard input while it passes it on.
_STDIN_COPIES = 4
#: After these the worker is as good as new: only its Store is gone.
_CLEAN_EXITS = frozenset({"exit", "trap", "fuel", "memory"})
#: How many workers may turn out to be dead before they received the guest.
_ATTEMPTS = 3


class Supervisor:
    """Thread-safe. Every call runs in the calling thread until its run is over. All supervisors share the workers."""

    def __init__(
        self, cache: ModuleCache | None = None, pool: WorkerPool | None = None, queue_timeout: float = QUEUE_SECONDS
    ) -> None:
        self.pool = pool or program_pool()
        self.pool.add_user()
        self._queue_timeout = queue_timeout
        self._mounts: set[Mounts] = set()
        self._known: dict[Preopen, HostDirectory] = {}
        self._is_closed = False
        self._cache = cache or shared_cache()
        self.loader = ModuleLoader(self.pool, self._cache)

    def run(
        self, source: ModuleSource, request: RunRequest, run: Run, *, commands: CommandModules | None = None
    ) -> ExecResult:
        """`commands` finds the modules that the guest may start with `exec`; None allows none."""
        try:
            directories = resolve_preopens(request.preopens, self._known) if request.preopens else []
            for _ in range(_ATTEMPTS):
                try:
                    return self._run_once(source, request, run, commands, directories)
                except WorkerUnusable:
                    continue
        except OSError as error:
            raise _missing_call(error) or host_failure(error) from error
        raise ExecutionFailed(f"{_ATTEMPTS} WASM workers died before they could be used")

    def load(self, source: ModuleSource, needs_fuel: bool, run: Run) -> None:
        """Compiles a module, so that its runs find it in a worker or in the cache. `InvalidRequest` if it is broken."""
        load = LoadRequest(source, needs_fuel, BUILD_SECONDS)
        try:
            with Lease(self.pool, WorkerQuery(load.key), run, self._queue_timeout) as lease:
                self.loader.ensure(lease, load, run)
                lease.is_reusable = True
        except OSError as error:
            raise host_failure(error) from error

    def close(self) -> None:
        """Call it when all runs have ended. Ends the workers that no other supervisor can use."""
        if not self._is_closed:
            self._is_closed = True
            self.pool.remove_user(self._mounts)
            if self._cache is not shared_cache():
                self._cache.close()

    def _run_once(
        self,
        source: ModuleSource,
        request: RunRequest,
        run: Run,
        commands: CommandModules | None,
        directories: list[HostDirectory],
    ) -> ExecResult:
        limits = request.limits
        load = LoadRequest(source, limits.fuel is not None, limits.timeout)
        query = WorkerQuery(load.key, tuple(directories if len(directories) < 2 else sorted(set(directories))))
        if query.mounts:
            self._mounts.add(query.mounts)
        self.loader.prefetch(load)
        with Lease(self.pool, query, run, self._queue_timeout) as lease:
            self.loader.ensure(lease, load, run)
            shown = _guest_directories(lease.worker, request, directories) if directories else ()
            spec = RunSpec(load.key, limits, shown, request.fetch is not None, commands is not None)
            result = _execute(
                lease,
                spec,
                request,
                run,
                lambda pending: HostCalls(pending, lease, self.loader, request, commands, run).handle,
            )
        if directories and source.is_own:
            keep_spare(self.pool, lambda spare: self.loader.warm(spare, load, limits.memory_bytes))
        return result


def _missing_call(error: OSError) -> SandboxError | None:
    """The error for a system call that this kernel does not have."""
    if error.errno != errno.ENOSYS:
        return None
    from warmcell.enforcers.kernel_calls import OF_WASM, missing_call

    missing = next(filter(None, map(missing_call, OF_WASM)), None)
    return BackendUnavailable(f"wasm: {missing.reason}", hint=missing.remedy) if missing else None


def _guest_directories(
    worker: WorkerHandle, request: RunRequest, directories: list[HostDirectory]
) -> tuple[GuestDirectory, ...]:
    found = [
        GuestDirectory(worker.path_of(each), preopen.guest_path, preopen.writable, each.device, each.inode)
        for preopen, each in zip(request.preopens, directories, strict=True)
    ]
    return tuple(found)


def _execute(
    lease: Lease,
    spec: RunSpec,
    request: RunRequest,
    run: Run,
    make_handler: Callable[[PendingRequest], HostCallHandler],
) -> ExecResult:
    """One run in the leased worker, which has the module."""
    worker, limits = lease.worker, request.limits
    worker.is_clean = False
    started = time.monotonic()
    is_sent = _send_run(lease, spec, request)
    # The worker is waking up: what is not needed to send the run is made now, while nothing waits for it.
    memory = limits.memory_bytes + _OVERHEAD_BYTES + _STDIN_COPIES * len(request.stdin)
    request_limits = RequestLimits(limits.timeout + GRACE_SECONDS, memory, limits.cpu_seconds)
    pending = PendingRequest(worker, request_limits, make_handler, request.listener)
    enforced = enforcement(request, worker_launcher().isolation_class, wasmtime_version())
    report = _await_exit(lease, pending, spec.module_key) if is_sent else ExitReport("timeout")
    lease.is_reusable = report.kind in _CLEAN_EXITS and not worker.is_killed and worker.drain()
    if not lease.is_reusable:
        worker.dispose()
    extra = pending.extra_seconds
    context = RunContext(request, started - run.asked + extra, time.monotonic() - started - extra, enforced)
    return _finish(worker, report, context)


def _finish(worker: WorkerHandle, report: ExitReport, context: RunContext) -> ExecResult:
    stdout, stderr = worker.captures
    listener = context.request.listener
    if listener is None:
        return make_result(report, stdout, stderr, context)
    stdout.finish()
    stderr.finish()
    result = make_result(report, stdout, stderr, context)
    _deliver_note(listener, stderr, result)
    return result


def _deliver_note(listener: Listener, stderr: Capture, result: ExecResult) -> None:
    """The message of a trap is part of the result but was never written to the pipe."""
    if isinstance(stderr, DeliveringCapture) and result.stderr_bytes[stderr.delivered :]:
        listener.deliver("stderr", result.stderr_bytes[stderr.delivered :])


def _send_run(lease: Lease, spec: RunSpec, request: RunRequest) -> bool:
    """False if the worker did not read the run within the run's own time."""
    try:
        frames = lease.worker.encode_run(spec, request.argv, request.env, request.stdin)
        lease.send_encoded(frames, seconds=request.limits.timeout + GRACE_SECONDS)
        return True
    except WorkerTimedOut:
        return False
    except WorkerDied:
        raise lease.explain_death("running the module") from None
    finally:
        lease.worker.start_streams(request.limits.output_bytes, request.listener)


def _await_exit(lease: Lease, pending: PendingRequest, key: str) -> ExitReport:
    try:
        answer = pending.wait()
        if not answer.message:
            return decode_exit(answer.blob)
        if answer.message.get("op") != "unknown":
            raise ProtocolViolation("unexpected answer to a run")
        lease.worker.loaded.pop(key, None)
        lease.is_reusable = True
        raise WorkerUnusable
    except WorkerTimedOut:
        return ExitReport("timeout", cpu_seconds=pending.cpu_seconds())
    except WorkerOverMemory:
        return ExitReport("memory", 1, "the worker exceeded its memory limit", cpu_seconds=pending.cpu_seconds())
    except WorkerOverCpu:
        return ExitReport("cpu", cpu_seconds=pending.cpu_seconds())
    except ProtocolViolation as error:
        return ExitReport("failed", message=f"the worker broke the protocol: {error}")
    except WorkerDied:
        raise lease.explain_death("running the module") from None
