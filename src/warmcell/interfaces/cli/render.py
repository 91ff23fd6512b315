"""Results and errors as JSON, and what each means for the exit status. Imported by every run, so it stays small."""

from __future__ import annotations

from warmcell.core.errors import (
    ExecutionTimeout,
    FuelExhausted,
    InvalidRequest,
    MemoryExceeded,
    PolicyViolation,
    SandboxError,
)
from warmcell.core.types import ExecResult
from warmcell.interfaces.cli.exits import MEMORY, OUR_FAILURE, TIMEOUT, USAGE
from warmcell.interfaces.cli.voice import say_error, say_warning, write_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def finish(
    outcome: ExecResult | SandboxError, as_json: bool, about: dict[str, str] | None = None, is_printed: bool = False
) -> int:
    """Prints what happened (and in JSON what it is about) and returns the exit status. `is_printed`: its output was."""
    result = outcome if isinstance(outcome, ExecResult) else partial_result(outcome)
    if as_json:
        print_json(to_plain(outcome) | (about or {}))
    elif result is not None:
        if not is_printed:
            write_bytes(result.stdout_bytes, result.stderr_bytes)
        _warn_about_cuts(result)
    if isinstance(outcome, SandboxError):
        if not as_json:
            say_error(outcome.message, outcome.hint)
        return status_of(outcome)
    if not as_json:
        for denial in outcome.denials:
            say_warning(f"refused: {denial.what!r} ({denial.rule})", denial.hint)
    return outcome.exit_code & 0xFF


def _warn_about_cuts(result: ExecResult) -> None:
    for name in ("stdout", "stderr"):
        if getattr(result, f"{name}_truncated"):
            kept = len(getattr(result, f"{name}_bytes"))
            say_warning(f"{name} was cut after {kept} bytes", "keep more with --max-output BYTES")


def partial_result(error: SandboxError) -> ExecResult | None:
    """What a stopped run had printed, for the errors that carry it."""
    return error.result if isinstance(error, ExecutionTimeout | MemoryExceeded | FuelExhausted) else None


def status_of(error: SandboxError) -> int:
    """The caller's mistake is 2, a limit has its own number, the rest is ours."""
    if isinstance(error, ExecutionTimeout):
        return TIMEOUT
    if isinstance(error, MemoryExceeded):
        return MEMORY
    return USAGE if isinstance(error, InvalidRequest | PolicyViolation) else OUR_FAILURE


def to_plain(outcome: ExecResult | SandboxError) -> dict[str, Any]:
    """`{"status", ...result, "error"?}` with nothing but JSON types in it."""
    if isinstance(outcome, ExecResult):
        return {"status": "success"} | outcome.to_dict()
    names = {ExecutionTimeout: "timeout", MemoryExceeded: "memory_exceeded"}
    partial = partial_result(outcome)
    return (
        {"status": names.get(type(outcome), "error")}
        | ({} if partial is None else partial.to_dict())
        | {"error": error_to_plain(outcome)}
    )


def error_to_plain(error: SandboxError) -> dict[str, Any]:
    """What went wrong, whose fault it was, and whether the same may work later."""
    return {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "fault": error.fault,
        "retryable": error.retryable,
    }


def print_json(value: object) -> None:
    import json

    # ASCII only: lone surrogates and odd terminals cannot break the line.
    print(json.dumps(value, ensure_ascii=True, default=str))
