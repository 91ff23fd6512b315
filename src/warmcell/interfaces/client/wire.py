"""Requests to JSON, and results and errors back from it. Pure module."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from warmcell.core import errors as core_errors
from warmcell.core.errors import (
    BackendBusy,
    BackendUnavailable,
    ExecutionFailed,
    InvalidRequest,
    SandboxError,
    SessionBusy,
    SessionNotFound,
)
from warmcell.core.types import Denial, Enforced, ExecRequest, ExecResult, Limits, Usage
from warmcell.sessions.cell_results import CellError, CellResult, DisplayData
from warmcell.workspace import errors as workspace_errors
from warmcell.workspace.errors import Misfit

_KINDS: dict[str, type[SandboxError]] = {
    kind.code: kind
    for module in (core_errors, workspace_errors)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, SandboxError)
}
#: What a server's doors refuse by themselves.
_KINDS |= {
    "http.400": InvalidRequest,
    "http.401": BackendUnavailable,
    "http.403": BackendUnavailable,
    "http.404": SessionNotFound,
    "http.408": BackendBusy,
    "http.409": SessionBusy,
    "http.413": InvalidRequest,
    "http.415": InvalidRequest,
    "http.429": BackendBusy,
    "http.503": BackendBusy,
}


def content(data: str | bytes) -> str | dict[str, str]:
    """Bytes are said as such; text stays text."""
    return data if isinstance(data, str) else {"base64": b64encode(data).decode()}


def plain_request(request: ExecRequest) -> dict[str, Any]:
    return {
        "language": str(request.language),
        "code": request.code,
        "timeout": request.timeout,
        "stdin": None if request.stdin is None else content(request.stdin),
        "memory_limit_mb": request.memory_limit_mb,
        "env": dict(request.env),
        "limits": plain_limits(request.limits),
        "args": list(request.args),
        "files": {path: content(data) for path, data in request.files.items()},
        "fetch_files": list(request.fetch_files),
    }


def plain_limits(limits: Limits | None) -> dict[str, Any] | None:
    said = {} if limits is None else {name: getattr(limits, name) for name in limits.__slots__}
    return {name: value for name, value in said.items() if value is not None} or None


def outcome(plain: dict[str, Any]) -> ExecResult:
    """The result, or raised what ended the run, with the partial result where there is one."""
    result = result_from(plain) if "exit_code" in plain else None
    if plain.get("error"):
        raise error_from(plain["error"], result)
    return result or ExecResult()


def cell_outcome(plain: dict[str, Any]) -> CellResult:
    """The same for a cell, where what it raised is part of its result."""
    if plain["status"] != "success":
        raise error_from(plain["error"], result_from(plain) if "exit_code" in plain else None)
    said = {name: plain[name] for name in CellResult.__slots__ if name in plain}
    said["outputs"] = [record(DisplayData, shown) for shown in plain["outputs"]]
    said["error"] = None if plain["error"] is None else record(CellError, plain["error"])
    return CellResult(**said | {"usage": record(Usage, plain["usage"])})


def result_from(plain: dict[str, Any]) -> ExecResult:
    raw = {name: _bytes(plain, name) for name in ("stdout", "stderr")}
    return ExecResult(
        stdout=plain["stdout"],
        stderr=plain["stderr"],
        exit_code=plain["exit_code"],
        signal=plain["signal"],
        duration=plain["duration"],
        stdout_bytes=raw["stdout"],
        stderr_bytes=raw["stderr"],
        stdout_truncated=plain["stdout_truncated"],
        stderr_truncated=plain["stderr_truncated"],
        usage=record(Usage, plain["usage"]),
        enforced=record(Enforced, plain["enforced"]),
        outputs=plain["outputs"],
        denials=[record(Denial, item) for item in plain["denials"]],
        queued=plain["queued"],
        files={path: b64decode(data) for path, data in plain["files"].items()},
    )


def _bytes(plain: dict[str, Any], name: str) -> bytes:
    encoded = plain.get(f"{name}_base64")
    text: str = plain[name]
    return text.encode("utf-8", "surrogatepass") if encoded is None else b64decode(encoded)


def record(kind: Any, plain: Mapping[str, Any]) -> Any:
    """What a newer server says beside what we know is left out."""
    return kind(**{name: plain[name] for name in kind.__slots__ if name in plain})


def error_from(plain: dict[str, Any], result: ExecResult | None = None) -> SandboxError:
    """The same kind of error, with the same words, whose fault and whether to try again."""
    kind = _KINDS.get(plain["code"], ExecutionFailed)
    error = kind.__new__(kind)
    Exception.__init__(error, plain["message"])
    error.message, error.hint = plain["message"], plain.get("hint")
    error.fault, error.retryable = plain.get("fault", "host"), bool(plain.get("retryable"))
    for name, value in (plain.get("details") or {}).items():
        if name.isidentifier() and not name.startswith("_") and not hasattr(BaseException, name):
            setattr(error, name, value)
    if isinstance(error, workspace_errors.PatchRejected):
        error.misfits = tuple(record(Misfit, misfit) for misfit in getattr(error, "misfits", ()))
    if result is not None or "result" in kind.__init__.__annotations__:
        error.result = result  # type: ignore[attr-defined]
    return error
