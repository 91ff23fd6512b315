"""From a worker's answer to a result or an error. Pure: the worker's words are checked, never believed."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from warmcell.backends.wasm.frames import ProtocolViolation
from warmcell.backends.wasm.launcher import launcher
from warmcell.backends.wasm.run_request import RunRequest
from warmcell.core.errors import ExecutionFailed, ExecutionTimeout, FuelExhausted, MemoryExceeded
from warmcell.core.types import Enforced, ExecResult, Usage
from warmcell.runner.outcome import cut_at_character

KINDS = frozenset({"exit", "trap", "timeout", "fuel", "memory", "failed"})
_KILLED = 137


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, from the worker's answer or, where it was killed, from what the supervisor saw."""

    kind: str
    exit_code: int = 0
    message: str = ""
    memory_bytes: int = 0
    cpu: float = 0.0


@dataclass(frozen=True, slots=True)
class Captured:
    """One stream as it was taken in."""

    data: bytes
    is_truncated: bool


def ending_from(message: dict[str, Any]) -> Ending:
    """Checks an answer: a worker whose guest took it over could say anything."""
    ending = Ending(
        _typed(message, "kind", str),
        _typed(message, "exit_code", int),
        _typed(message, "message", str),
        _typed(message, "memory_bytes", int),
        float(_typed(message, "cpu", float)),
    )
    if message.get("op") != "done" or ending.kind not in KINDS or not 0 <= ending.exit_code <= 255:
        raise ProtocolViolation("impossible answer")
    return ending


def _typed(message: dict[str, Any], name: str, kind: type) -> Any:
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, (kind, int) if kind is float else kind):
        raise ProtocolViolation(f"{name} is missing or of the wrong type")
    return value


def enforced(request: RunRequest, wasmtime_version: str) -> Enforced:
    """What held during the run, by name."""
    cpu = "fuel" if request.fuel is not None else "watchdog" if request.cpu_seconds is not None else None
    is_writable = any(preopen.writable for preopen in request.preopens)
    per_file = "rlimit per file" if request.file_bytes is not None else None
    disk = per_file if is_writable else "nothing writable"
    return _enforced(wasmtime_version, cpu, disk, bool(request.preopens), request.fetch is not None)


@functools.cache
def _enforced(wasmtime_version: str, cpu: str | None, disk: str | None, has_files: bool, has_fetch: bool) -> Enforced:
    files = "wasi preopens" if has_files else "no filesystem"
    return Enforced(
        isolation_class=launcher().isolation_class,
        enforcer=f"wasmtime {wasmtime_version}",
        timeout="epoch+kill",
        memory="wasmtime limits",
        cpu=cpu,
        processes="wasm",
        open_files="rlimit",
        disk=disk,
        output="supervisor",
        network="host call" if has_fetch else "no sockets",
        filesystem_read=files,
        filesystem_write=files,
        environment="wasi",
        syscalls="wasm",
    )


def result_of(
    ending: Ending, stdout: Captured, stderr: Captured, seconds: float, request: RunRequest, version: str
) -> ExecResult:
    """The result of a run; for one that a limit ended, the partial result."""
    out, err = (cut_at_character(item.data) if item.is_truncated else item.data for item in (stdout, stderr))
    note = ending.message.strip() + "\n" if ending.kind in ("trap", "memory") and ending.message else ""
    return ExecResult(
        stdout=as_text(out, stdout.is_truncated),
        stderr=_joined(as_text(err, stderr.is_truncated), note),
        exit_code=_exit_code(ending),
        duration=seconds,
        stdout_bytes=out,
        stderr_bytes=err + note.encode(),
        stdout_truncated=stdout.is_truncated,
        stderr_truncated=stderr.is_truncated,
        usage=Usage(ending.cpu, seconds, ending.memory_bytes),
        enforced=enforced(request, version),
    )


def _joined(text: str, note: str) -> str:
    return f"{text}\n{note}" if note and text and not text.endswith("\n") else text + note


def _exit_code(ending: Ending) -> int:
    return ending.exit_code if ending.kind in ("exit", "trap") else _KILLED


def deliver(ending: Ending, result: ExecResult, request: RunRequest) -> ExecResult:
    """The result, or the error that carries it."""
    match ending.kind:
        case "timeout":
            raise ExecutionTimeout(request.timeout, result)
        case "cpu":
            raise ExecutionTimeout(request.cpu_seconds or request.timeout, result)
        case "memory":
            raise MemoryExceeded(request.memory_limit_mb, result)
        case "fuel":
            raise FuelExhausted(request.fuel or 0, result)
        case "failed":
            raise ExecutionFailed(f"the run could not be carried out: {ending.message}")
    return result


def as_text(data: bytes, is_truncated: bool) -> str:
    """What a caller reads; bytes that are no UTF-8 are replaced, and a cut is announced."""
    text = data.decode("utf-8", "replace")
    return f"{text}\n... (truncated after {len(data)} bytes)" if is_truncated else text
