"""Turns a worker's exit report into a result or an error. Pure."""

from __future__ import annotations

import functools

from warmcell.backends.wasm.run_request import RunRequest
from warmcell.core.errors import ExecutionFailed, ExecutionTimeout, FuelExhausted, MemoryExceeded
from warmcell.core.records import dataclass
from warmcell.core.types import MIB, Enforced, ExecResult, Usage
from warmcell.guest.wasm.protocol import ExitReport
from warmcell.runner.outcome import text_of
from warmcell.runner.streams import Capture

_KILLED = 137


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the supervisor knows about a finished run."""

    request: RunRequest
    #: Seconds before the guest could run, and seconds that the guest ran.
    queued: float
    duration: float
    enforced: Enforced


def make_result(report: ExitReport, stdout: Capture, stderr: Capture, context: RunContext) -> ExecResult:
    """Raises the error for a limit that ended the run or for a failure of the worker.

    Besides the worker's own kinds, `cpu` is for a run that the supervisor killed.
    """
    limits = context.request.limits
    if report.kind == "failed":
        hint = "`ulimit -v unlimited`, or free some memory" if "ulimit -v" in report.message else None
        raise ExecutionFailed(f"the WASM run failed: {report.message}", hint=hint)
    result = _result(report, stdout, stderr, context)
    match report.kind:
        case "timeout":
            raise ExecutionTimeout(limits.timeout, result)
        case "cpu":
            raise ExecutionTimeout(limits.cpu_seconds or limits.timeout, result, clock="cpu")
        case "memory":
            raise MemoryExceeded(limits.memory_bytes // MIB, result)
        case "fuel":
            raise FuelExhausted(limits.fuel or 0, result)
    return result


def _result(report: ExitReport, stdout: Capture, stderr: Capture, context: RunContext) -> ExecResult:
    """For a run that a limit ended, the partial result."""
    (out, out_bytes), (err, err_bytes) = text_of(stdout), text_of(stderr)
    # A trap is the guest's own end. Its message goes where a shell would print that of a crash.
    note = report.message.strip() + "\n" if report.kind == "trap" and report.message else ""
    return ExecResult(
        stdout=out,
        stderr=f"{err}\n{note}" if note and err and not err.endswith("\n") else err + note,
        exit_code=report.exit_code if report.kind in ("exit", "trap") else _KILLED,
        duration=context.duration,
        stdout_bytes=out_bytes,
        stderr_bytes=err_bytes + note.encode(),
        stdout_truncated=stdout.total > stdout.cap,
        stderr_truncated=stderr.total > stderr.cap,
        usage=Usage(report.cpu_seconds, context.duration, report.memory_bytes),
        enforced=context.enforced,
        queued=context.queued,
    )


def enforcement(request: RunRequest, isolation_class: str, wasmtime_version: str) -> Enforced:
    """Which mechanism enforces each limit of a run."""
    limits = request.limits
    cpu = "fuel" if limits.fuel is not None else "watchdog" if limits.cpu_seconds is not None else None
    is_writable = any(preopen.writable for preopen in request.preopens)
    per_file = "rlimit per file" if limits.file_bytes is not None else None
    disk = per_file if is_writable else "nothing writable"
    files = "wasi preopens" if request.preopens else "no filesystem"
    network = "host call" if request.fetch is not None else "no sockets"
    return _make_enforced(isolation_class, wasmtime_version, cpu, disk, files, network)


@functools.lru_cache(maxsize=64)
def _make_enforced(
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
