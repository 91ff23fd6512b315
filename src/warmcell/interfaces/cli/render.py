"""Results and errors as JSON and as exit statuses. Imported by every run, so it stays small."""

from __future__ import annotations

import sys

from warmcell.core import errors
from warmcell.core.errors import ExecutionTimeout, FuelExhausted, MemoryExceeded, SandboxError
from warmcell.core.types import ExecResult
from warmcell.interfaces.cli.exits import MEMORY, OUR_FAILURE, TIMEOUT, USAGE
from warmcell.interfaces.cli.messages import say_error, say_warning, write_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OF_STORES = (errors.ImageNotFound, errors.ImageInvalid, errors.WorkspaceNotFound, errors.SnapshotNotFound)
_USAGE_ERRORS = (errors.InvalidRequest, errors.PolicyViolation, *_OF_STORES)


def finish(
    outcome: ExecResult | SandboxError,
    as_json: bool,
    about: dict[str, Any] | None = None,
    is_printed: bool = False,
    more_output: str = "keep more with --max-output BYTES",
) -> int:
    """Print the outcome (in JSON together with `about`) and return the exit status.

    `is_printed`: the guest's output has been written already. `more_output`: the hint if some of it was left out.
    """
    result = outcome if isinstance(outcome, ExecResult) else partial_result(outcome)
    if as_json:
        print_json(to_plain(outcome) | (about or {}))
    elif result is not None:
        if not is_printed:
            write_bytes(result.stdout_bytes, result.stderr_bytes)
        _warn_about_truncation(result, more_output)
    if isinstance(outcome, SandboxError):
        if not as_json:
            say_error(outcome.message, outcome.hint)
        return status_of(outcome)
    if not as_json:
        for denial in outcome.denials:
            say_warning(f"refused: {denial.what!r} ({denial.rule})", denial.hint)
    return outcome.exit_code & 0xFF


def _warn_about_truncation(result: ExecResult, hint: str) -> None:
    for name in ("stdout", "stderr"):
        if getattr(result, f"{name}_truncated"):
            kept = len(getattr(result, f"{name}_bytes"))
            say_warning(f"{name} was truncated after {kept} bytes", hint)


def partial_result(error: SandboxError) -> ExecResult | None:
    """The partial result of a run that a limit ended, or None."""
    return error.result if isinstance(error, ExecutionTimeout | MemoryExceeded | FuelExhausted) else None


def status_of(error: SandboxError) -> int:
    """2 for the caller's mistakes, a status of its own for each limit, 125 for the rest."""
    if isinstance(error, ExecutionTimeout):
        return TIMEOUT
    if isinstance(error, MemoryExceeded):
        return MEMORY
    return USAGE if isinstance(error, _USAGE_ERRORS) else OUR_FAILURE


def to_plain(outcome: ExecResult | SandboxError) -> dict[str, Any]:
    """`{"status", ...result, "error"?}` in JSON types."""
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
    """The error's code, message, hint and fault, and whether a retry may succeed."""
    return {name: getattr(error, name) for name in ("code", "message", "hint", "fault", "retryable")}


def print_json(value: object) -> None:
    import json

    # ASCII only: safe for lone surrogates and any terminal.
    print(json.dumps(value, ensure_ascii=True, default=str))


def print_url(url: str, as_json: bool) -> None:
    """Print where a server listens, for programs that wait for this line."""
    if as_json:
        print_json({"status": "listening", "url": url})
    else:
        print(url)
    sys.stdout.flush()
