"""Exits of programs in a live cage and of the cage itself, as errors for the caller. Pure module."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from warmcell.core.errors import (
    ExecutionFailed,
    ExecutionTimeout,
    InvalidRequest,
    MemoryExceeded,
    SandboxError,
    SessionEnded,
)
from warmcell.core.lines import one_line
from warmcell.core.records import dataclass
from warmcell.core.types import Denial, EffectiveLimits, ExecResult
from warmcell.runner.denials import MOST_DENIALS, denials_from
from warmcell.sessions.agent_channel import Message

_LONGEST_QUOTE = 300
#: The reason of a cage that ended because it was idle.
IDLE = "it was idle for longer than idle_timeout"


@dataclass(frozen=True, slots=True)
class ProgramExit:
    """The exit of a program, as the agent reports it. `status` is the wait status."""

    status: int
    cpu_time: float
    peak_memory: int


@dataclass(frozen=True, slots=True)
class CageEnd:
    """Why a live cage ended. `limit`: the one that it exceeded, "memory", "cpu", "disk" or "gpu memory", or ""."""

    reason: str
    limit: str = ""

    def error(self) -> SandboxError:
        return SessionEnded(self.reason)

    def error_with(self, result: ExecResult, limits: EffectiveLimits) -> SandboxError:
        """The same error as for a run that exceeded the limit."""
        if self.limit == "memory":
            return MemoryExceeded(limits.memory_mb, result)
        if self.limit == "gpu memory":
            return MemoryExceeded(limits.gpu_memory_mb or 0, result, is_gpu=True)
        if self.limit == "cpu":
            return ExecutionTimeout(limits.cpu_seconds or 0.0, result, clock="cpu")
        return self.error()


def is_wait_status(status: object) -> bool:
    """Whether wait() can return this for a process that has ended."""
    if not isinstance(status, int) or isinstance(status, bool) or not 0 <= status <= 0xFFFF:
        return False
    return os.WIFEXITED(status) or (os.WIFSIGNALED(status) and status <= 0xFF)


def cage_end_from(report: dict[str, Any], reason: str, last_words: str) -> CageEnd:
    if reason:
        return CageEnd(reason)
    verdict = report.get("verdict", "")
    if verdict == "gpu unreadable":
        return CageEnd("the driver does not report the memory of GPUs, so that gpu_memory_mb cannot be enforced")
    if verdict and verdict != "blind":  # a guest that exits while the watcher looks at it has exceeded no limit
        return CageEnd(f"the live cage went over its limit of {verdict}", verdict)
    status = report.get("exit")
    if status is not None and os.WIFSIGNALED(status):
        return CageEnd(f"its agent was killed by signal {os.WTERMSIG(status)}")
    lines = last_words.splitlines()
    # The guest can write there, so it is quoted, without control characters.
    quote = f': "{one_line(lines[-1], _LONGEST_QUOTE)}"' if lines else ""
    return CageEnd(f"its agent ended{quote}")


def start_error(answer: Message, cwd: str) -> SandboxError:
    number, reason = answer.get("errno"), str(answer.get("error"))[:200]
    if number in (2, 20):
        return InvalidRequest(f"no such directory in the sandbox: {cwd}", field="cwd")
    if number in (11, 12, 24):
        hint = "end some, or raise Limits(processes=..., memory_mb=..., open_files=...)"
        return ExecutionFailed(f"the live cage has no room for another process: {reason}", hint=hint)
    return ExecutionFailed(f"could not start it: {reason}")


#: The cage reports a repeated denial only after this time, so one from shortly before may have been repeated.
_TOLD_AGAIN_AFTER = 0.1


class LiveDenials:
    """Thread-safe. `targets`: paths that the policy shows, whose files are never reported."""

    def __init__(self, targets: tuple[str, ...]) -> None:
        self._targets = targets
        self._last: dict[Denial, float] = {}
        self._lock = threading.Lock()

    def add(self, denial: Denial) -> None:
        with self._lock:
            if denial in self._last or len(self._last) < MOST_DENIALS:
                self._last[denial] = time.monotonic()

    def note(self, kind: str, what: str) -> None:
        """Adds a denial in the cage's own form."""
        for denial in denials_from([[kind, what]], self._targets):
            self.add(denial)

    def since(self, moment: float) -> list[Denial]:
        with self._lock:
            return [denial for denial, last in self._last.items() if last >= moment - _TOLD_AGAIN_AFTER]
