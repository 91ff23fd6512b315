"""Cases and verdicts, and which verdict an outcome calls for. Pure module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from warmcell.core.errors import (
    BuildFailed,
    ExecutionTimeout,
    FuelExhausted,
    InvalidRequest,
    MemoryExceeded,
    SandboxError,
)
from warmcell.core.output_events import Outcome
from warmcell.core.records import dataclass
from warmcell.core.request_checks import check_positive_int
from warmcell.core.types import ExecResult, Limits, check_timeout

Status = Literal[
    "accepted",
    "wrong_answer",
    "time_limit",
    "memory_limit",
    "output_limit",
    "runtime_error",
    "build_error",
    "checker_error",
    "host_error",
]
#: Nothing was learnt about the program: the case is to be judged again.
NOT_JUDGED: frozenset[Status] = frozenset({"checker_error", "host_error"})
_SIGXFSZ = 25


class CheckerFailed(SandboxError):
    """The caller's checker or interactor failed, so that nothing is known about the case."""

    code = "sandbox.checker_failed"
    fault = "caller"


@dataclass(frozen=True, slots=True)
class Case:
    """A test case: the input of a program, and the output that is expected.

    `timeout` (seconds) and `memory_mb` are used in place of the request's if they are set. `name` is for reports.
    """

    stdin: str | bytes = ""
    expected: str | bytes = ""
    timeout: float | None = None
    memory_mb: int | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        for field in ("stdin", "expected"):
            if not isinstance(getattr(self, field), str | bytes):
                kind = type(getattr(self, field)).__name__
                raise InvalidRequest(f"must be text or bytes, not {kind}", field=field)
        if self.timeout is not None:
            check_timeout(self.timeout)
        if self.memory_mb is not None:
            check_positive_int("memory_mb", self.memory_mb, 1 << 20)
        if self.name is not None and not isinstance(self.name, str):
            raise InvalidRequest(f"must be text, not {type(self.name).__name__}", field="name")

    @property
    def stdin_bytes(self) -> bytes:
        return _as_bytes(self.stdin)

    @property
    def expected_bytes(self) -> bytes:
        return _as_bytes(self.expected)


def _as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a case. `result` is that of the run, of the compiler for `build_error`, or None.

    `host_error` and `checker_error` say nothing about the program; `error` says what went wrong.
    """

    status: Status
    result: ExecResult | None = None
    error: SandboxError | None = None

    @property
    def ok(self) -> bool:
        return self.status == "accepted"

    @property
    def time(self) -> float:
        """Seconds that passed while the program could run."""
        return self.result.duration if self.result is not None else 0.0

    @property
    def cpu_time(self) -> float:
        return self.result.usage.cpu_time if self.result is not None else 0.0

    @property
    def memory_bytes(self) -> int:
        """The peak, all processes together."""
        return self.result.usage.peak_memory_bytes if self.result is not None else 0


def verdict_to_plain(verdict: Verdict, error_to_plain: Callable[[SandboxError], Any]) -> dict[str, Any]:
    names = ("status", "time", "cpu_time", "memory_bytes")
    return {
        **{name: getattr(verdict, name) for name in names},
        "result": None if verdict.result is None else verdict.result.to_dict(),
        "error": None if verdict.error is None else error_to_plain(verdict.error),
    }


def failure_verdict(error: SandboxError) -> Verdict:
    """The verdict that an error calls for. Mistakes of the caller, and a host that can never run it, are raised."""
    partial = getattr(error, "result", None)
    if isinstance(error, BuildFailed) or getattr(error, "phase", "run") == "build":
        return Verdict("build_error", partial, error)
    if partial is not None and partial.stdout_truncated and isinstance(error, ExecutionTimeout):
        return Verdict("output_limit", partial, error)
    if isinstance(error, ExecutionTimeout | FuelExhausted):
        return Verdict("time_limit", partial, error)
    if isinstance(error, MemoryExceeded):
        return Verdict("memory_limit", partial, error)
    if error.fault == "host" and error.retryable:
        return Verdict("host_error", partial, error)
    raise error


def verdict_of(outcome: Outcome, limits: Limits | None) -> Verdict | ExecResult:
    """A verdict, or a result whose output is still to be checked. The totals decide: a watcher may look too late."""
    if outcome.error is not None:
        return failure_verdict(outcome.error)
    result = outcome.result
    assert result is not None
    if result.stdout_truncated or (result.stderr_truncated and result.signal == _SIGXFSZ):
        return Verdict("output_limit", result)
    if not result.ok:
        return Verdict("runtime_error", result)
    if limits is not None and limits.cpu_seconds is not None and result.usage.cpu_time > limits.cpu_seconds:
        return Verdict("time_limit", result, ExecutionTimeout(limits.cpu_seconds, result, clock="cpu"))
    return result
