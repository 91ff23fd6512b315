"""From a worker's answer to a result or an error. Pure: the worker's words are checked, never believed."""

from __future__ import annotations

import functools

from warmcell.backends.wasm.frames import ENDING, ENDINGS, MAX_TEXT_BYTES, ProtocolViolation
from warmcell.backends.wasm.run_request import RunRequest
from warmcell.core.errors import ExecutionFailed, ExecutionTimeout, FuelExhausted, MemoryExceeded
from warmcell.core.records import dataclass
from warmcell.core.types import Enforced, ExecResult, Usage
from warmcell.runner.outcome import text_of
from warmcell.runner.streams import Capture

_KILLED = 137
_MOST_CPU_SECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, from the worker's answer or, where it was killed, from what the supervisor saw."""

    kind: str
    exit_code: int = 0
    message: str = ""
    memory_bytes: int = 0
    cpu: float = 0.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What the run was given, and what is known about it from outside."""

    request: RunRequest
    #: What the caller waited before the guest could run, and what the guest itself took.
    queued: float
    seconds: float
    enforced: Enforced


def ending_from(answer: bytes) -> Ending:
    """Checks an answer: a worker whose guest took it over could say anything."""
    if not ENDING.size <= len(answer) <= MAX_TEXT_BYTES:
        raise ProtocolViolation(f"answer of {len(answer)} bytes")
    kind, exit_code, memory_bytes, cpu = ENDING.unpack_from(answer)
    if kind >= len(ENDINGS) or not 0 <= cpu <= _MOST_CPU_SECONDS:  # false for NaN as well
        raise ProtocolViolation("impossible answer")
    return Ending(ENDINGS[kind], exit_code, answer[ENDING.size :].decode("utf-8", "replace"), memory_bytes, cpu)


def deliver(ending: Ending, stdout: Capture, stderr: Capture, terms: Terms) -> ExecResult:
    """The result, or the error that a limit or our own failure calls for."""
    request = terms.request
    if ending.kind == "failed":
        hint = "`ulimit -v unlimited`, or free some memory" if "ulimit -v" in ending.message else None
        raise ExecutionFailed(f"the run could not be carried out: {ending.message}", hint=hint)
    result = _result(ending, stdout, stderr, terms)
    match ending.kind:
        case "timeout":
            raise ExecutionTimeout(request.timeout, result)
        case "cpu":
            raise ExecutionTimeout(request.cpu_seconds or request.timeout, result, clock="cpu")
        case "memory":
            raise MemoryExceeded(request.memory_limit_mb, result)
        case "fuel":
            raise FuelExhausted(request.fuel or 0, result)
    return result


def _result(ending: Ending, stdout: Capture, stderr: Capture, terms: Terms) -> ExecResult:
    """For a run that a limit ended, the partial result."""
    (out, out_bytes), (err, err_bytes) = text_of(stdout), text_of(stderr)
    # A trap is the guest's own end, and its message what a shell would print of a crash.
    note = ending.message.strip() + "\n" if ending.kind == "trap" and ending.message else ""
    return ExecResult(
        stdout=out,
        stderr=f"{err}\n{note}" if note and err and not err.endswith("\n") else err + note,
        exit_code=ending.exit_code if ending.kind in ("exit", "trap") else _KILLED,
        duration=terms.seconds,
        stdout_bytes=out_bytes,
        stderr_bytes=err_bytes + note.encode(),
        stdout_truncated=stdout.total > stdout.cap,
        stderr_truncated=stderr.total > stderr.cap,
        usage=Usage(ending.cpu, terms.seconds, ending.memory_bytes),
        enforced=terms.enforced,
        queued=terms.queued,
    )


def what_held(request: RunRequest, isolation_class: str, wasmtime_version: str) -> Enforced:
    """By name, for any run that was asked for in this way."""
    cpu = "fuel" if request.fuel is not None else "watchdog" if request.cpu_seconds is not None else None
    is_writable = any(preopen.writable for preopen in request.preopens)
    per_file = "rlimit per file" if request.file_bytes is not None else None
    disk = per_file if is_writable else "nothing writable"
    files = "wasi preopens" if request.preopens else "no filesystem"
    network = "host call" if request.fetch is not None else "no sockets"
    return _enforced(isolation_class, wasmtime_version, cpu, disk, files, network)


@functools.lru_cache(maxsize=64)
def _enforced(
    isolation_class: str, wasmtime_version: str, cpu: str | None, disk: str | None, files: str, network: str
) -> Enforced:
    return Enforced(
        isolation_class=isolation_class,
        enforcer=f"wasmtime {wasmtime_version}",
        timeout="epoch+kill",
        memory="wasmtime limits",
        cpu=cpu,
        processes="wasm",
        open_files="rlimit",
        disk=disk,
        output="supervisor",
        network=network,
        filesystem_read=files,
        filesystem_write=files,
        environment="wasi",
        syscalls="wasm",
    )
