"""Cases and verdicts, and what an outcome means for a case. Pure module."""

from __future__ import annotations

from typing import Literal

from warmcell.core.errors import (
    BuildFailed,
    ExecutionTimeout,
    FuelExhausted,
    InvalidRequest,
    MemoryExceeded,
    SandboxError,
)
from warmcell.core.outcomes import Outcome
from warmcell.core.records import dataclass
from warmcell.core.types import ExecResult, check_timeout

Status = Literal[
    "accepted",
    "wrong_answer",
    "time_limit",
    "memory_limit",
    "output_limit",
    "runtime_error",
    "build_error",
    "host_error",
]


@dataclass(frozen=True, slots=True)
class Case:
    """What a program reads and what it is to print. `timeout` is its own, else the request's; `name` is for people."""

    stdin: str | bytes = ""
    expected: str | bytes = ""
    timeout: float | None = None
    name: str = ""

    def __post_init__(self) -> None:
        for field in ("stdin", "expected"):
            if not isinstance(getattr(self, field), str | bytes):
                kind = type(getattr(self, field)).__name__
                raise InvalidRequest(f"must be text or bytes, not {kind}", field=field)
        if self.timeout is not None:
            check_timeout(self.timeout)

    @property
    def expected_bytes(self) -> bytes:
        return self.expected if isinstance(self.expected, bytes) else self.expected.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a case came to. `result` is the run's, the compiler's for `build_error`, None where there is none.

    `host_error` says nothing about the program: `error` has what went wrong here, in two attempts.
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
        """At its peak, all processes together."""
        return self.result.usage.peak_memory_bytes if self.result is not None else 0


def failure(error: SandboxError) -> Verdict:
    """What an error says about the case. The caller's mistakes and a host that will never do are raised instead."""
    partial = getattr(error, "result", None)
    if isinstance(error, BuildFailed) or getattr(error, "phase", "run") == "build":
        return Verdict("build_error", partial, error)
    if isinstance(error, ExecutionTimeout | FuelExhausted):
        return Verdict("time_limit", partial, error)
    if isinstance(error, MemoryExceeded):
        return Verdict("memory_limit", partial, error)
    if error.fault == "host" and error.retryable:
        return Verdict("host_error", partial, error)
    raise error


def verdict_of(outcome: Outcome) -> Verdict | ExecResult:
    """A verdict, or a result whose output is still to be looked at."""
    if outcome.error is not None:
        return failure(outcome.error)
    result = outcome.result
    assert result is not None
    if result.stdout_truncated:
        return Verdict("output_limit", result)
    if not result.ok:
        return Verdict("runtime_error", result)
    return result
