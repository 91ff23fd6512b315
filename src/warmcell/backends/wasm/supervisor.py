"""Carries out runs: finds a worker, gets the module into it, lets it run, judges, and cleans up whatever happened."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

from warmcell.backends.wasm.conversation import Bounds, Conversation, OnQuestion, OverCpu, OverMemory
from warmcell.backends.wasm.frames import Overstayed, ProtocolViolation, WorkerDied
from warmcell.backends.wasm.launcher import launcher
from warmcell.backends.wasm.lease import Lease, keep_spare
from warmcell.backends.wasm.module_cache import ModuleCache, shared_cache
from warmcell.backends.wasm.module_loading import Load, Loader
from warmcell.backends.wasm.module_source import ModuleSource
from warmcell.backends.wasm.outcome import Ending, Terms, deliver, ending_from, what_held
from warmcell.backends.wasm.pool import Wanted, WorkerPool, WorkerUnusable, program_pool
from warmcell.backends.wasm.questions import CommandModules, Questions
from warmcell.backends.wasm.run_request import (
    Directories,
    Directory,
    Preopen,
    RunRequest,
    look_at_directories,
)
from warmcell.backends.wasm.worker import Worker
from warmcell.core.errors import BackendUnavailable, ExecutionFailed, SandboxError
from warmcell.core.types import MIB, ExecResult
from warmcell.lifetime.descriptors import host_failure
from warmcell.lifetime.run import Run
from warmcell.runner.listening import HeardCapture, Listener
from warmcell.runner.streams import Capture
from warmcell.toolbox.runtime import wasmtime_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Of one backend or sandbox.
DEFAULT_MOST_WORKERS = 32
QUEUE_SECONDS = 60.0
#: What compiling a caller's module may take when nobody waits for its run.
BUILD_SECONDS = 60.0
#: Inside, the epoch ends a run at its deadline; from outside it is killed this much later.
GRACE_SECONDS = 0.2
#: Tables, the runtime's own structures and the guest's stack, on top of linear memory.
_OVERHEAD_BYTES = 96 * MIB
#: The worker holds standard input a few times while handing it over.
_STDIN_COPIES = 4
#: After these the worker is as good as new: only its Store is gone.
_CLEAN_ENDINGS = frozenset({"exit", "trap", "fuel", "memory"})
#: How often a worker may turn out to be gone before it was given anything of the guest's.
_ATTEMPTS = 3


class Supervisor:
    """Thread-safe; every call runs in the calling thread until its run is over. The workers are the program's."""

    def __init__(
        self, cache: ModuleCache | None = None, pool: WorkerPool | None = None, queue_timeout: float = QUEUE_SECONDS
    ) -> None:
        self.pool = pool or program_pool()
        self.pool.join()
        self._queue_timeout = queue_timeout
        self._directories: set[Directories] = set()
        self._known: dict[Preopen, Directory] = {}
        self._is_closed = False
        self._cache = cache or shared_cache()
        self.loader = Loader(self.pool, self._cache)

    def run(
        self, source: ModuleSource, request: RunRequest, run: Run, *, commands: CommandModules | None = None
    ) -> ExecResult:
        """One run. `commands` finds the modules that the guest may start through `exec`; None allows none."""
        try:
            directories = look_at_directories(request.preopens, self._known) if request.preopens else []
            for _ in range(_ATTEMPTS):
                try:
                    return self._attempt(source, request, run, commands, directories)
                except WorkerUnusable:
                    continue
        except OSError as error:
            raise _missing_call(error) or host_failure(error) from error
        raise ExecutionFailed("WASM workers end before they can be used")

    def load(self, source: ModuleSource, needs_fuel: bool, run: Run) -> None:
        """Compiles the module, so that its runs find it in a worker or in the cache; `InvalidRequest` if it is none."""
        load = Load(source, needs_fuel, BUILD_SECONDS)
        try:
            with Lease(self.pool, Wanted(load.key), run, self._queue_timeout) as lease:
                self.loader.ensure(lease, load, run)
                lease.is_reusable = True
        except OSError as error:
            raise host_failure(error) from error

    def close(self) -> None:
        """Its runs have ended. Workers that nobody else can use end too."""
        if not self._is_closed:
            self._is_closed = True
            self.pool.leave(self._directories)
            if self._cache is not shared_cache():
                self._cache.close()

    def _attempt(
        self,
        source: ModuleSource,
        request: RunRequest,
        run: Run,
        commands: CommandModules | None,
        directories: list[Directory],
    ) -> ExecResult:
        load = Load(source, request.fuel is not None, request.timeout)
        key = load.key
        wanted = Wanted(key, tuple(directories if len(directories) < 2 else sorted(set(directories))))
        if wanted.directories:
            self._directories.add(wanted.directories)
        self.loader.look_ahead(load)
        with Lease(self.pool, wanted, run, self._queue_timeout) as lease:
            self.loader.ensure(lease, load, run)
            terms = _terms(key, lease.worker, request, directories, commands)
            result = _carry_out(
                lease,
                lambda conversation: Questions(conversation, lease, self.loader, request, commands, run).answer,
                terms,
                request,
                run,
            )
        if directories and source.is_own:
            keep_spare(self.pool, lambda spare: self.loader.warm(spare, load, request.memory_bytes))
        return result


def _missing_call(error: OSError) -> SandboxError | None:
    """What the kernel does not have at all, by its name."""
    if error.errno != errno.ENOSYS:
        return None
    from warmcell.enforcers.kernel_calls import OF_WASM, missing_call

    missing = next(filter(None, map(missing_call, OF_WASM)), None)
    return BackendUnavailable(f"wasm: {missing.reason}", hint=missing.remedy) if missing else None


def _terms(
    key: str, worker: Worker, request: RunRequest, directories: list[Directory], commands: CommandModules | None
) -> tuple[Any, ...]:
    """What `RunTerms` has. Most runs are given what the worker knows already, and then a plain tuple finds it."""
    preopens = [
        (worker.place(each), preopen.guest_path, preopen.writable, each.device, each.inode)
        for preopen, each in zip(request.preopens, directories, strict=True)
    ]
    return (
        key,
        request.timeout,
        request.memory_bytes,
        request.fuel,
        tuple(preopens),
        request.output_bytes,
        request.open_files,
        request.file_bytes,
        request.fetch is not None,
        commands is not None,
    )


def _carry_out(
    lease: Lease,
    answering: Callable[[Conversation], OnQuestion],
    terms: tuple[Any, ...],
    request: RunRequest,
    run: Run,
) -> ExecResult:
    worker = lease.worker
    worker.is_clean = False
    started = time.monotonic()
    is_asked = _ask(lease, terms, request)
    # The worker is waking up: whatever is not needed to ask it is made now, when nobody waits for it.
    memory = request.memory_bytes + _OVERHEAD_BYTES + _STDIN_COPIES * len(request.stdin)
    bounds = Bounds(request.timeout + GRACE_SECONDS, memory, request.cpu_seconds)
    conversation = Conversation(worker, bounds, answering, request.listener)
    held = what_held(request, launcher().isolation_class, wasmtime_version())
    ending = _converse(lease, conversation, terms[0]) if is_asked else Ending("timeout")
    lease.is_reusable = ending.kind in _CLEAN_ENDINGS and not worker.is_killed and worker.drain()
    if not lease.is_reusable:
        worker.dispose()
    given = conversation.time_given
    kept = Terms(request, started - run.asked + given, time.monotonic() - started - given, held)
    stdout, stderr = worker.captures
    if request.listener is None:
        return deliver(ending, stdout, stderr, kept)
    stdout.finish()
    stderr.finish()
    result = deliver(ending, stdout, stderr, kept)
    _tell_note(request.listener, stderr, result)
    return result


def _tell_note(listener: Listener, stderr: Capture, result: ExecResult) -> None:
    """The message of a trap is in the result, and never was in a pipe."""
    if isinstance(stderr, HeardCapture) and result.stderr_bytes[stderr.told :]:
        listener.deliver("stderr", result.stderr_bytes[stderr.told :])


def _ask(lease: Lease, terms: tuple[Any, ...], request: RunRequest) -> bool:
    """Hands the run over; False when the worker did not even read it in all the run's time."""
    try:
        frames = lease.worker.run_frames(terms, request.argv, request.env, request.stdin)
        lease.send_encoded(frames, seconds=request.timeout + GRACE_SECONDS)
        return True
    except Overstayed:
        return False
    except WorkerDied:
        raise lease.explain_death("running the module") from None
    finally:
        lease.worker.start_streams(request.output_bytes, request.listener)


def _converse(lease: Lease, conversation: Conversation, key: str) -> Ending:
    try:
        answer = conversation.wait()
        if not answer.message:
            return ending_from(answer.blob)
        if answer.message.get("op") != "unknown":
            raise ProtocolViolation("answer of another kind")
        lease.worker.loaded.pop(key, None)
        lease.is_reusable = True
        raise WorkerUnusable
    except Overstayed:
        return Ending("timeout", cpu=conversation.spent_cpu())
    except OverMemory:
        return Ending("memory", 1, "the worker outgrew its memory", cpu=conversation.spent_cpu())
    except OverCpu:
        return Ending("cpu", cpu=conversation.spent_cpu())
    except ProtocolViolation as error:
        return Ending("failed", message=f"the worker broke the protocol: {error}")
    except WorkerDied:
        raise lease.explain_death("running the module") from None
