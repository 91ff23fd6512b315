"""Carries out runs: finds a worker, gets the module into it, lets it run, judges, and cleans up whatever happened."""

from __future__ import annotations

import time
from typing import Any

from warmcell.backends.wasm.cancellation import Cancellation
from warmcell.backends.wasm.conversation import Bounds, Conversation, OverCpu, OverMemory
from warmcell.backends.wasm.frames import Overstayed, ProtocolViolation, WorkerDied
from warmcell.backends.wasm.module_cache import ModuleCache, default_directory
from warmcell.backends.wasm.module_loading import OWN_COMPILE_SECONDS, Loader, loaded_key
from warmcell.backends.wasm.module_source import ModuleSource
from warmcell.backends.wasm.outcome import Captured, Ending, deliver, ending_from, result_of
from warmcell.backends.wasm.pool import DEFAULT_MOST_WORKERS, Lease, Paths, WorkerPool
from warmcell.backends.wasm.questions import CommandModules, Questions
from warmcell.backends.wasm.run_request import MIB, OpenedPreopen, RunRequest, open_preopens
from warmcell.backends.wasm.runtime import wasmtime_version
from warmcell.core.errors import ExecutionTimeout
from warmcell.core.types import ExecResult

#: Inside, the epoch ends a run at its deadline; from outside it is killed this much later.
GRACE_SECONDS = 0.2
#: Tables, the runtime's own structures and the guest's stack, on top of linear memory.
_OVERHEAD_BYTES = 96 * MIB
#: The worker holds standard input a few times while handing it over.
_STDIN_COPIES = 4
#: After these the worker is as good as new: only its Store is gone.
_CLEAN_ENDINGS = frozenset({"exit", "trap", "fuel", "memory"})


class Supervisor:
    """Thread-safe; every call runs in the calling thread until its run is over."""

    def __init__(self, most_workers: int = DEFAULT_MOST_WORKERS, cache: ModuleCache | None = None) -> None:
        self.pool = WorkerPool(most_workers)
        self.cache = cache or ModuleCache(default_directory())
        self.loader = Loader(self.pool, self.cache)

    def run(
        self,
        source: ModuleSource,
        request: RunRequest,
        *,
        commands: CommandModules | None = None,
        cancellation: Cancellation | None = None,
    ) -> ExecResult:
        """One run. `commands` finds the modules that the guest may start through `exec`; None allows none."""
        preopens = open_preopens(request.preopens)
        needs_fuel = request.fuel is not None
        prefer = loaded_key(source, needs_fuel)
        with Lease(self.pool, prefer, _paths(preopens), cancellation=cancellation) as lease:
            started = time.monotonic()
            if prefer not in lease.worker.loaded:
                seconds = OWN_COMPILE_SECONDS if source.is_own else request.timeout
                self.loader.ensure(lease, source, needs_fuel, seconds, request.timeout)
                # Compiling what the caller gave is the caller's time; our own modules are our business.
                started = time.monotonic() if source.is_own else started
            questions = Questions(lease.worker, self.loader, request.fetch, commands)
            return _carry_out(lease, questions, run_message(prefer, request, preopens, commands), request, started)

    def close(self) -> None:
        self.pool.close()
        self.cache.close()


def _paths(preopens: list[OpenedPreopen]) -> Paths:
    return (
        tuple(sorted({item.host_path for item in preopens if not item.is_writable})),
        tuple(sorted({item.host_path for item in preopens if item.is_writable})),
    )


def run_message(
    key: str, request: RunRequest, preopens: list[OpenedPreopen], commands: CommandModules | None
) -> dict[str, Any]:
    return {
        "op": "run",
        "key": key,
        "argv": list(request.argv),
        "env": dict(request.env),
        "memory_bytes": request.memory_bytes,
        "fuel": request.fuel,
        "preopens": [item.as_message() for item in preopens],
        "output_bytes": request.output_bytes,
        "open_files": request.open_files,
        "file_bytes": request.file_bytes,
        "fetch": request.fetch is not None,
        "exec": commands is not None,
    }


def _carry_out(
    lease: Lease, questions: Questions, message: dict[str, Any], request: RunRequest, started: float
) -> ExecResult:
    worker = lease.worker
    worker.is_clean = False
    worker.start_streams(request.output_bytes)
    ending = _converse(lease, questions, message, request, started)
    lease.is_reusable = ending.kind in _CLEAN_ENDINGS and not worker.is_killed and worker.drain()
    if not lease.is_reusable:
        worker.dispose()
    stdout, stderr = (Captured(stream.kept(), stream.is_truncated) for stream in worker.streams)
    seconds = time.monotonic() - started
    return deliver(ending, result_of(ending, stdout, stderr, seconds, request, wasmtime_version()), request)


def _converse(
    lease: Lease, questions: Questions, message: dict[str, Any], request: RunRequest, started: float
) -> Ending:
    remaining = request.timeout - (time.monotonic() - started)
    if remaining <= 0:
        raise ExecutionTimeout(request.timeout)
    memory = request.memory_bytes + _OVERHEAD_BYTES + _STDIN_COPIES * len(request.stdin)
    bounds = Bounds(remaining + GRACE_SECONDS, memory, request.cpu_seconds)
    conversation = questions.conversation = Conversation(lease.worker, bounds, questions.answer)
    try:
        message["timeout"] = remaining
        lease.worker.channel.send(message, request.stdin, timeout=bounds.seconds)
        return ending_from(conversation.wait().message)
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
