"""Answers of tools: results and errors as dictionaries of JSON types. Pure module."""

from __future__ import annotations

import logging
from typing import Any

from warmcell.core.door_text import cap, explain, in_guest_terms
from warmcell.core.errors import ExecutionTimeout, FuelExhausted, MemoryExceeded, SandboxError, SessionEnded
from warmcell.core.lines import one_line
from warmcell.core.types import MIB, ExecResult

MAX_TEXT = 30_000
MAX_DENIALS = 20
_CARRIES_RESULT = (ExecutionTimeout, MemoryExceeded, FuelExhausted, SessionEnded)
_log = logging.getLogger("warmcell.tool")


def success(result: ExecResult, max_text: int = MAX_TEXT) -> dict[str, Any]:
    """A run that exited, with any status."""
    stdout, stderr, was_cut = _texts(result, max_text)
    answer: dict[str, Any] = {
        "status": "success",
        "stdout": stdout,
        "stderr": stderr,
        "exit_code": result.exit_code,
        "duration_ms": milliseconds(result.duration),
    }
    if result.signal is not None:
        answer["signal"] = result.signal
    return answer | _details(result, was_cut)


def failure(error: Exception, max_text: int = MAX_TEXT) -> dict[str, Any]:
    """`status` is `timeout`, `memory_exceeded` or `error`; `fault` is the guest's, the caller's or the host's."""
    if isinstance(error, ExecutionTimeout):
        return _limit_answer("timeout", error, error.result, error.timeout, max_text)
    if isinstance(error, MemoryExceeded | FuelExhausted | SessionEnded):
        status = "memory_exceeded" if isinstance(error, MemoryExceeded) else "error"
        return _limit_answer(status, error, error.result, 0.0, max_text)
    if isinstance(error, SandboxError):
        return {"status": "error", "stderr": explain(error), "fault": error.fault}
    # The text of an unexpected exception may contain host data: log it, and give the model only its type.
    _log.error("unexpected error in a tool", exc_info=error)
    reason = f"internal error of the sandbox ({type(error).__name__}); try again"
    return {"status": "error", "stderr": reason, "fault": "host"}


def partial_result(error: Exception) -> ExecResult | None:
    """The output so far of a run that a limit ended."""
    return error.result if isinstance(error, _CARRIES_RESULT) else None


def milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _texts(result: ExecResult, max_text: int) -> tuple[str, str, bool]:
    """Both streams as a model sees them, and whether anything was cut."""
    stdout, stdout_cut = cap(result.stdout, max_text)
    stderr, stderr_cut = cap(result.stderr, max_text)
    return in_guest_terms(stdout), in_guest_terms(stderr), stdout_cut or stderr_cut


def _limit_answer(
    status: str, error: SandboxError, partial: ExecResult | None, duration: float, max_text: int
) -> dict[str, Any]:
    """A run that a limit ended: its output, then the reason, at the end where a model looks."""
    result = partial or ExecResult(duration=duration)
    stdout, stderr, was_cut = _texts(result, max_text)
    separator = "\n" if stderr and not stderr.endswith("\n") else ""
    answer: dict[str, Any] = {
        "status": status,
        "stdout": stdout,
        "stderr": f"{stderr}{separator}{explain(error)}",
        "duration_ms": milliseconds(result.duration),
        "fault": error.fault,
    }
    return answer | _details(result, was_cut)


def _details(result: ExecResult, was_cut: bool) -> dict[str, Any]:
    """The keys that are present only when they carry information."""
    details: dict[str, Any] = {}
    if was_cut or result.stdout_truncated or result.stderr_truncated:
        details["truncated"] = True
    if result.denials:
        details["denials"] = [
            {"kind": item.kind, "what": _denial_text(item.what), "rule": item.rule, "hint": _denial_text(item.hint)}
            for item in result.denials[:MAX_DENIALS]
        ]
    # Refused ones are among the denials, which say no more than the guest may know.
    reached = [item for item in result.connections if item.is_allowed and item.bytes_received]
    if reached:
        details["connections"] = [
            {"host": item.host, "port": item.port, "sent": item.bytes_sent, "received": item.bytes_received}
            for item in reached[:MAX_DENIALS]
        ]
    if result.usage.cpu_time or result.usage.peak_memory_bytes:
        details["usage"] = {
            "cpu_ms": milliseconds(result.usage.cpu_time),
            "peak_memory_mb": round(result.usage.peak_memory_bytes / MIB, 1),
        }
    return details


def _denial_text(text: str) -> str:
    """Our text around a name that the guest chose."""
    return one_line(in_guest_terms(text[:1000]), 500)
