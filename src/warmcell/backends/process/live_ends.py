"""How things end in a live cage, and how the cage does: what was told, as a caller is to hear it. Pure module."""

from __future__ import annotations

import os
from typing import Any

from warmcell.core.errors import (
    ExecutionFailed,
    ExecutionTimeout,
    InvalidRequest,
    MemoryExceeded,
    SandboxError,
    SessionEnded,
)
from warmcell.core.records import dataclass
from warmcell.core.types import EffectiveLimits, ExecResult
from warmcell.sessions.conversation import Message

#: Why a cage ended that nobody used.
IDLE = "it was idle for longer than idle_timeout"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program of the live cage ended, as the agent tells: `status` is what wait() gave."""

    status: int
    cpu_time: float
    peak_memory: int


@dataclass(frozen=True, slots=True)
class CageEnd:
    """Why a live cage is no more. `limit`: the one that it met, "memory", "cpu" or "disk", or ""."""

    reason: str
    limit: str = ""

    def error(self) -> SandboxError:
        return SessionEnded(self.reason)

    def error_with(self, result: ExecResult, limits: EffectiveLimits) -> SandboxError:
        """As for a run that met the same limit."""
        if self.limit == "memory":
            return MemoryExceeded(limits.memory_mb, result)
        if self.limit == "cpu":
            return ExecutionTimeout(limits.cpu_seconds or 0.0, result, clock="cpu")
        return self.error()


def end_of(report: dict[str, Any], reason: str, last_words: str) -> CageEnd:
    if reason:
        return CageEnd(reason)
    verdict = report.get("verdict", "")
    if verdict and verdict != "blind":  # who dies while it is looked at cannot be seen, and met no limit
        return CageEnd(f"the live cage went over its limit of {verdict}", verdict)
    status = report.get("exit")
    if status is not None and os.WIFSIGNALED(status):
        return CageEnd(f"its agent was killed by signal {os.WTERMSIG(status)}")
    return CageEnd("its agent ended" + (f": {last_words.splitlines()[-1]}" if last_words else ""))


def refusal(answer: Message, cwd: str) -> SandboxError:
    number, reason = answer.get("errno"), str(answer.get("error"))[:200]
    if number in (2, 20):
        return InvalidRequest(f"no such directory in the sandbox: {cwd}", field="cwd")
    if number in (11, 12, 24):
        hint = "end some, or raise Limits(processes=..., memory_mb=..., open_files=...)"
        return ExecutionFailed(f"the live cage has no room for another process: {reason}", hint=hint)
    return ExecutionFailed(f"could not start it: {reason}")
