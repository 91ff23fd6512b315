"""Requests as JSON, and results, events and errors from JSON. Pure module."""

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
from warmcell.core.output_events import OutputEvent, ResultEvent, StreamEvent
from warmcell.core.types import Connection, Denial, Enforced, ExecRequest, ExecResult, Limits, Usage
from warmcell.sessions.cell_results import CellError, CellResult, DisplayData
from warmcell.workspace import errors as workspace_errors
from warmcell.workspace.errors import Misfit

_KINDS: dict[str, type[SandboxError]] = {
    kind.code: kind
    for module in (core_errors, workspace_errors)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, SandboxError)
}
#: Errors of the HTTP layer itself.
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
    """Text as it is, bytes as base64."""
    return data if isinstance(data, str) else {"base64": b64encode(data).decode()}


def plain_request(request: ExecRequest) -> dict[str, Any]:
    return {
        "language": str(request.language),
        "code": content(request.code),
        "timeout": request.timeout,
        "stdin": None if request.stdin is None else content(request.stdin),
        "memory_limit_mb": request.memory_limit_mb,
        "env": dict(request.env),
        "limits": plain_limits(request.limits),
        "args": list(request.args),
        "files": {path: content(data) for path, data in request.files.items()},
        "fetch_files": list(request.fetch_files),
    }


def plain_image(image: str | None, user: str | None) -> dict[str, Any]:
    """The image fields; none if both are None, because a server without images would refuse them."""
    return {name: value for name, value in (("image", image), ("user", user)) if value is not None}


def plain_limits(limits: Limits | None) -> dict[str, Any] | None:
    fields = {} if limits is None else {name: getattr(limits, name) for name in limits.__slots__}
    return {name: value for name, value in fields.items() if value is not None} or None


def outcome(plain: dict[str, Any]) -> ExecResult:
    """The result. Raises the error that ended the run, with the partial result if there is one."""
    result = result_from(plain) if "exit_code" in plain else None
    if plain.get("error"):
        raise error_from(plain["error"], result)
    return result or ExecResult()


def cell_outcome(plain: dict[str, Any]) -> CellResult:
    """The result of a cell, whose own exception is part of it."""
    if plain["status"] != "success":
        raise error_from(plain["error"], result_from(plain) if "exit_code" in plain else None)
    fields = {name: plain[name] for name in CellResult.__slots__ if name in plain}
    fields["outputs"] = [record(DisplayData, item) for item in plain["outputs"]]
    fields["error"] = None if plain["error"] is None else record(CellError, plain["error"])
    fields["denials"] = [record(Denial, item) for item in plain.get("denials", ())]
    return CellResult(**fields | {"usage": record(Usage, plain["usage"])})


def stream_event(name: str, plain: dict[str, Any]) -> StreamEvent:
    """An event of a run: output, or last its result."""
    if name == "result":
        return ResultEvent(outcome(plain))
    data = b64decode(plain["base64"]) if "base64" in plain else plain["text"].encode()
    return OutputEvent(name, data)  # type: ignore[arg-type]


def result_from(plain: dict[str, Any]) -> ExecResult:
    same = "stdout stderr exit_code signal duration stdout_truncated stderr_truncated outputs queued".split()
    return ExecResult(
        **{name: plain[name] for name in same},
        stdout_bytes=_bytes(plain, "stdout"),
        stderr_bytes=_bytes(plain, "stderr"),
        usage=record(Usage, plain["usage"]),
        enforced=record(Enforced, plain["enforced"]),
        denials=[record(Denial, item) for item in plain["denials"]],
        files={path: b64decode(data) for path, data in plain["files"].items()},
        connections=tuple(record(Connection, item) for item in plain.get("connections", ())),
    )


def _bytes(plain: dict[str, Any], name: str) -> bytes:
    encoded = plain.get(f"{name}_base64")
    text: str = plain[name]
    return text.encode("utf-8", "surrogatepass") if encoded is None else b64decode(encoded)


def record(kind: Any, plain: Mapping[str, Any]) -> Any:
    """A record from JSON. Ignores fields that a newer server added."""
    return kind(**{name: plain[name] for name in kind.__slots__ if name in plain})


def error_from(plain: dict[str, Any], result: ExecResult | None = None) -> SandboxError:
    """The error as it was raised on the server: class, message, fault, details."""
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
