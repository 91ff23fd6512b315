"""Runs modules: leases a worker, loads the module, starts the run, waits for its exit, and cleans up.

A guest that took its worker over could send anything as a host call. Messages are small and checked field by field;
bodies are passed on as bytes.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from warmcell.backends.wasm.channel import Frame, WorkerDied, WorkerTimedOut
from warmcell.backends.wasm.launcher import worker_launcher
from warmcell.backends.wasm.module_loader import LoadRequest, ModuleCache, ModuleLoader, shared_cache
from warmcell.backends.wasm.pool import MOST_WORKERS, Lease, WorkerPool, WorkerQuery, WorkerUnusable, program_pool
from warmcell.backends.wasm.run_request import (
    Fetch,
    HostDirectory,
    ModuleSource,
    Mounts,
    Preopen,
    RunContext,
    RunRequest,
    enforcement,
    make_result,
    resolve_preopens,
)
from warmcell.backends.wasm.worker_handle import (
    HostCallHandler,
    PendingRequest,
    RequestLimits,
    WorkerHandle,
    WorkerOverCpu,
    WorkerOverMemory,
)
from warmcell.cage.fast_imports import write_json
from warmcell.core.errors import BackendBusy, BackendUnavailable, ExecutionFailed, SandboxError
from warmcell.core.light import LateLog
from warmcell.core.types import MIB, ExecResult
from warmcell.guest.wasm.protocol import ExitReport, GuestDirectory, ProtocolViolation, RunSpec, decode_exit
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.host_program import start_daemon
from warmcell.lifetime.ownership import Lock
from warmcell.lifetime.run import Run
from warmcell.runner.listening import DeliveringCapture
from warmcell.toolbox.runtime import wasmtime_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Per backend or sandbox.
DEFAULT_MOST_WORKERS = 32
QUEUE_SECONDS = 60.0
#: How many sets of directories a supervisor remembers: more than there are workers.
_MOST_MOUNTS = 2 * MOST_WORKERS
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
_ALL_DIED = f"{_ATTEMPTS} WASM workers died before they could be used"
_log = LateLog(__name__)
#: Returns the module of a command, or None if there is no such command.
CommandModules = Callable[[str], ModuleSource | None]
_SEND_SECONDS = 10.0
#: How many answers of up to 16 MiB may wait for a worker that does not read them.
_MOST_UNREAD = 8
#: How often a run gets back the time in which a command failed to be prepared, such as by a build of half a minute. A
#: guest that asks again and again would otherwise run without end. As many as there are such commands.
_MOST_FAILURES = 5
_FETCH_FIELDS = {"url": str, "method": str, "headers": dict, "timeout": (int, float), "follow_redirects": bool}


class HostCalls:
    """The host calls of one run that need the supervisor: a fetch, or the module of a command."""

    def __init__(
        self,
        pending: PendingRequest,
        lease: Lease,
        loader: ModuleLoader,
        request: RunRequest,
        commands: CommandModules | None,
        run: Run,
    ) -> None:
        self._pending = pending
        self._worker = lease.worker
        self._loader = loader
        self._fetch = request.fetch
        self._needs_fuel = request.limits.fuel is not None
        self._commands, self._run = commands, run
        self._offered = ""
        self._is_fetching = False
        self._failures = 0
        #: For answers that the worker has not read.
        self._room = threading.Semaphore(_MOST_UNREAD)

    def handle(self, frame: Frame) -> None:
        what = frame.message.get("what")
        if self._is_fetching:
            raise ProtocolViolation("host call during a fetch")
        if what == "fetch" and self._fetch is not None:
            request = fetch_request(frame)
            if not self._room.acquire(blocking=False):
                raise ProtocolViolation("fetches without reading the answers")
            self._is_fetching = True
            # In a thread: this one watches the run's deadline and output meanwhile.
            start_daemon(self._send_fetch, self._fetch, request)
        elif what == "command" and self._commands is not None:
            self._send_command(frame.message.get("name"), self._commands)
        elif what == "loaded" and self._offered:
            # Only now: a module that the worker failed to load must not count as loaded.
            self._worker.loaded[self._offered] = None
            self._offered = ""
        else:
            raise ProtocolViolation(f"unexpected host call {str(what)[:40]!r}")

    def _send_fetch(self, fetch: Fetch, request: bytes) -> None:
        try:
            data = fetch(request)
        except SandboxError as error:
            data = _error(error.code, str(error))
        except Exception as error:
            data = _error("sandbox.fetch_failed", f"fetch failed: {type(error).__name__}")
        self._is_fetching = False  # before the worker can read the answer
        try:
            with contextlib.suppress(WorkerDied, WorkerTimedOut):
                self._worker.channel.send({"op": "answer"}, data, timeout=_SEND_SECONDS)
        finally:
            self._room.release()

    def _send_command(self, name: object, commands: CommandModules) -> None:
        started = time.monotonic()
        try:
            source = commands(name) if isinstance(name, str) else None
            if source is None:
                self._refuse("command not found")
            else:
                self._send_module(LoadRequest(source, self._needs_fuel), started)
        except BackendUnavailable as error:
            _log.warning("command %r is not available: %s", name, error)
            self._refuse(error.hint or "not available on this host", time.monotonic() - started)
        except SandboxError as error:
            _log.warning("command %r could not be loaded: %s", name, error)
            self._refuse("its module could not be loaded", time.monotonic() - started)

    def _refuse(self, reason: str, seconds: float = 0.0) -> None:
        """`seconds`: how long it took to fail, such as a build. The worker has stopped its clock."""
        self._failures += seconds > 0
        if self._failures <= _MOST_FAILURES:
            self._pending.extend(seconds)
        self._send({"op": "answer", "is_found": False, "reason": reason})

    def _send_module(self, load: LoadRequest, started: float) -> None:
        compiled = self._loader.find_compiled(load)
        if compiled is None:
            # If all workers are busy, or the other one dies, the calling worker compiles it, and the result is not
            # cached. Not another attempt of the whole run: its guest has already run.
            with contextlib.suppress(BackendBusy, WorkerUnusable):
                self._loader.prepare_own(load, self._run)
            compiled = self._loader.find_compiled(load)
        message = load.message("compiled" if compiled else load.source.format, [])
        message |= {"op": "answer", "is_found": True, "facts": compiled.facts if compiled else {}}
        data = b"" if compiled else load.source.read()
        self._offered = load.key
        # Preparing our own module is not the guest's time. The worker has stopped its clock too.
        self._pending.extend(time.monotonic() - started)
        if compiled is None:
            self._send(message, data)
            return
        with contextlib.closing(compiled):
            self._send(message, b"", [compiled.descriptor])

    def _send(self, message: dict[str, Any], blob: bytes = b"", descriptors: list[int] | None = None) -> None:
        self._worker.channel.send(message, blob, descriptors or [], timeout=self._pending.seconds_to_deadline())


def fetch_request(frame: Frame) -> bytes:
    """The request for `Fetch`, built only from known fields of the right type."""
    fields = {name: frame.message[name] for name in _FETCH_FIELDS if frame.message.get(name) is not None}
    for name, value in fields.items():
        is_boolean = isinstance(value, bool) and name != "follow_redirects"
        if is_boolean or not isinstance(value, _FETCH_FIELDS[name]):  # type: ignore[arg-type]
            raise ProtocolViolation(f"{name} has the wrong type")
    if not all(isinstance(value, str) for value in fields.get("headers", {}).values()):
        raise ProtocolViolation("header values are not strings")
    if frame.message.get("has_body") is True:
        import base64

        fields["body"] = base64.b64encode(frame.blob).decode()
    return write_json(fields).encode()


def _error(code: str, message: str) -> bytes:
    return write_json({"error": {"code": code, "message": message}}).encode()


class Supervisor:
    """Thread-safe. Every call runs in the calling thread until its run is over. All supervisors share the workers."""

    def __init__(
        self, cache: ModuleCache | None = None, pool: WorkerPool | None = None, queue_timeout: float = QUEUE_SECONDS
    ) -> None:
        self.pool = pool or program_pool()
        self.pool.add_user()
        self._queue_timeout = queue_timeout
        #: What its last runs had mounted, oldest first. Each run of a backend with files has its own directory.
        self._mounts: OrderedDict[Mounts, None] = OrderedDict()
        self._lock = Lock()
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
        raise ExecutionFailed(_ALL_DIED)

    def load(self, source: ModuleSource, needs_fuel: bool, run: Run) -> None:
        """Compiles a module, so that its runs find it in a worker or in the cache. `InvalidRequest` if it is broken."""
        load = LoadRequest(source, needs_fuel, BUILD_SECONDS)
        try:
            for _ in range(_ATTEMPTS):
                with contextlib.suppress(WorkerUnusable):
                    with Lease(self.pool, WorkerQuery(load.key), run, self._queue_timeout) as lease:
                        self.loader.ensure(lease, load, run)
                        lease.is_reusable = True
                    return
        except OSError as error:
            raise host_failure(error) from error
        raise ExecutionFailed(_ALL_DIED)

    def close(self) -> None:
        """Call it when all runs have ended. Ends the workers that no other supervisor can use."""
        if not self._is_closed:
            self._is_closed = True
            self.pool.remove_user(self._mounts)
            if self._cache is not shared_cache():
                self._cache.close()

    def _remember(self, mounts: Mounts) -> None:
        with self._lock:
            self._mounts[mounts] = None
            self._mounts.move_to_end(mounts)
            if len(self._mounts) > _MOST_MOUNTS:
                self._mounts.popitem(last=False)

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
        mounts = tuple(directories if len(directories) < 2 else sorted(set(directories)))
        query = WorkerQuery(load.key, mounts, is_for_one_run=request.has_own_directories)
        if query.mounts:
            self._remember(query.mounts)
        self.loader.prefetch(load)
        with Lease(self.pool, query, run, self._queue_timeout) as lease:
            self.loader.ensure(lease, load, run)
            shown: tuple[GuestDirectory, ...] = ()
            if directories:
                shown = tuple(
                    GuestDirectory(lease.worker.path_of(at), preopen.guest_path, preopen.writable, at.device, at.inode)
                    for preopen, at in zip(request.preopens, directories, strict=True)
                )
            spec = RunSpec(load.key, limits, shown, request.fetch is not None, commands is not None)
            result = _execute(
                lease,
                spec,
                request,
                run,
                lambda pending: HostCalls(pending, lease, self.loader, request, commands, run).handle,
            )
        if directories and source.is_own:
            self.pool.keep_spare(lambda spare: self.loader.warm(spare, load, limits.memory_bytes))
        return result


def _missing_call(error: OSError) -> SandboxError | None:
    """The error for a system call that this kernel does not have."""
    if error.errno != errno.ENOSYS:
        return None
    from warmcell.enforcers.kernel_calls import WASM_CALLS, missing_call

    missing = next(filter(None, map(missing_call, WASM_CALLS)), None)
    return BackendUnavailable(f"wasm: {missing.reason}", hint=missing.remedy) if missing else None


def _execute(
    lease: Lease,
    spec: RunSpec,
    request: RunRequest,
    run: Run,
    make_handler: Callable[[PendingRequest], HostCallHandler],
) -> ExecResult:
    """One run in the leased worker, which has the module."""
    worker, limits = lease.worker, request.limits
    worker.is_clean = lease.is_reusable = False
    started = time.monotonic()
    is_sent = _send_run(lease, spec, request)
    # The worker is waking up: what is not needed to send the run is made now, while nothing waits for it.
    memory = limits.memory_bytes + _OVERHEAD_BYTES + _STDIN_COPIES * len(request.stdin)
    request_limits = RequestLimits(limits.timeout + GRACE_SECONDS, memory, limits.cpu_seconds)
    pending = PendingRequest(worker, request_limits, make_handler, request.listener)
    enforced = enforcement(request, worker_launcher().isolation_class, wasmtime_version())
    report = _await_exit(lease, pending, spec.module_key) if is_sent else ExitReport("timeout")
    # Not reusable until its output was read: the listener may raise, and the next run would get the rest.
    has_reported, lease.is_reusable = lease.is_reusable, False
    lease.is_reusable = has_reported and not worker.is_killed and worker.drain()
    if not lease.is_reusable:
        worker.dispose()
    extra = pending.extra_seconds
    context = RunContext(request, started - run.requested_at + extra, time.monotonic() - started - extra, enforced)
    return _finish(worker, report, context)


def _finish(worker: WorkerHandle, report: ExitReport, context: RunContext) -> ExecResult:
    stdout, stderr = worker.captures
    listener = context.request.listener
    if listener is None:
        return make_result(report, stdout, stderr, context)
    stdout.finish()
    stderr.finish()
    result = make_result(report, stdout, stderr, context)
    # The message of a trap is part of the result but was never written to the pipe.
    if isinstance(stderr, DeliveringCapture) and result.stderr_bytes[stderr.delivered :]:
        listener.deliver("stderr", result.stderr_bytes[stderr.delivered :])
    return result


def _send_run(lease: Lease, spec: RunSpec, request: RunRequest) -> bool:
    """False if the worker did not read the run within the run's own time."""
    try:
        frames = lease.worker.encode_run(spec, request.argv, request.env, request.stdin)
        lease.send(frames, seconds=request.limits.timeout + GRACE_SECONDS)
        return True
    except WorkerTimedOut:
        return False
    except WorkerDied:
        raise lease.explain_death("running the module") from None
    finally:
        lease.worker.start_streams(request.limits.output_bytes, request.listener)


def _await_exit(lease: Lease, pending: PendingRequest, key: str) -> ExitReport:
    """How the run ended. The worker is reusable only if it reported the end itself: otherwise the run may go on."""
    try:
        answer = pending.wait()
        if not answer.message:
            report = decode_exit(answer.blob)
            lease.is_reusable = report.kind in _CLEAN_EXITS
            return report
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
