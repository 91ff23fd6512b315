"""RunRecord: the events (`core.events`) and the one log record (logger "warmcell") of each run.

They cost nothing while there are no listeners.
"""

from __future__ import annotations

import sys

from warmcell.core import events
from warmcell.core.errors import ExecutionTimeout, MemoryExceeded, SandboxError
from warmcell.core.request_checks import check_kind
from warmcell.core.types import ExecRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from warmcell.core.types import ExecResult

LOGGER = "warmcell"
_MAKES_REQUEST = "ExecRequest(language, code, timeout)"
#: Looking the logger up takes a lock and ten calls. By the module, which may be reloaded.
_known_logger: dict[object, Any] = {}


class RunRecord:
    """Around one run, by its backend: `with RunRecord(name, request, policy) as record: record.result = ...`.

    The level is INFO, so that nothing is printed by default. Fields of the record beside the message: `backend`,
    `language`, `exit_code`, `duration`, `queued`, and for runs without a result `fault` and `error`.
    """

    __slots__ = ("_backend", "_language", "_outer", "_policy", "_subject", "result")

    def __init__(self, backend: str, request: ExecRequest, policy: Any = None) -> None:
        self._backend = backend
        if not isinstance(request, ExecRequest):
            check_kind("request", request, ExecRequest, _MAKES_REQUEST)
        self._language = request.language
        self._policy = policy
        self._subject = self._outer = ""
        self.result: ExecResult | None = None

    def __enter__(self) -> RunRecord:
        if events.listeners:
            self._policy = _hash(self._policy)
            names = {"backend": self._backend, "language": str(self._language), "policy": self._policy}
            self._subject = events.new_run()
            self._outer = events.work_for(self._subject)
            events.emit("run.asked", self._subject, names)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._subject:
            self._emit_end(error)
            events.work_for(self._outer)
        # A program that wants records has imported `logging`; importing it takes longer than most programs run.
        if "logging" not in sys.modules:
            return
        import logging  # waits for another thread that is importing it

        logger = _known_logger.get(logging) or _known_logger.setdefault(logging, logging.getLogger(LOGGER))
        if logger.isEnabledFor(logging.INFO):
            fields = self._fields(error)
            said = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
            logger.info("run %s", said, extra=fields)

    def _emit_end(self, error: BaseException | None) -> None:
        result = self.result if error is None else getattr(error, "result", None)
        for denial in result.denials if result is not None else ():
            said = {"kind": denial.kind, "what": denial.what, "rule": denial.rule, "hint": denial.hint}
            events.emit("denial", self._subject, said)
        fields = {**self._fields(error), "outcome": outcome_of(result, error), "policy": self._policy}
        events.emit("run.ended", self._subject, {**fields, **_costs(result)}, result)

    def _fields(self, error: BaseException | None) -> dict[str, Any]:
        result = self.result if error is None else getattr(error, "result", None)
        return {
            "backend": self._backend,
            "language": str(self._language),
            "exit_code": result.exit_code if result is not None else None,
            "duration": round(result.duration, 6) if result is not None else None,
            # The time in the server's queue counts too: a client waits for both.
            "queued": round(result.queued + events.annotation("waited", 0.0), 6) if result is not None else None,
            "fault": _fault(error),
            "error": error.code if isinstance(error, SandboxError) else type(error).__name__ if error else None,
        }


def _fault(error: BaseException | None) -> str | None:
    if error is None:
        return None
    if isinstance(error, SandboxError):
        return error.fault
    return "host" if isinstance(error, Exception) else "caller"  # cancelled, or interrupted


def outcome_of(result: Any, error: BaseException | None) -> str:
    """One word of a short list, for counting."""
    if error is None:
        return "ok" if result is not None and result.ok else "failed"
    if isinstance(error, ExecutionTimeout):
        return "timeout"
    if isinstance(error, MemoryExceeded):
        return "memory"
    return "error" if isinstance(error, Exception) else "cancelled"


def _costs(result: ExecResult | None) -> dict[str, Any]:
    if result is None:
        return {}
    enforced = result.enforced
    held = {name: getattr(enforced, name) for name in enforced.__dataclass_fields__}
    return {
        "signal": result.signal,
        "cpu_time": round(result.usage.cpu_time, 6),
        "peak_memory_bytes": result.usage.peak_memory_bytes,
        "stdout_bytes": len(result.stdout_bytes),
        "stderr_bytes": len(result.stderr_bytes),
        "truncated": result.stdout_truncated or result.stderr_truncated,
        "denials": len(result.denials),
        "enforced": {name: how for name, how in held.items() if how is not None},
    }


def _hash(policy: Any) -> str | None:
    """A digest that identifies the policy in a log without its content."""
    if policy is None:
        return None
    import hashlib

    return hashlib.sha256(policy.to_json().encode("utf-8", "surrogatepass")).hexdigest()[:16]
