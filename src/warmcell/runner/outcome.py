"""Judges how a run ended: facts in, `ExecResult` or the error that a limit calls for out. Pure module."""

from __future__ import annotations

import errno
import os

from warmcell.core.errors import ExecutionFailed, ExecutionTimeout, InvalidRequest, MemoryExceeded, SandboxError
from warmcell.core.records import dataclass, field
from warmcell.core.types import ENOUGH_OPEN_FILES, Denial, Enforced, ExecResult, Usage
from warmcell.runner.cgroups import KernelUsage as KernelUsage
from warmcell.runner.not_started import JOB_UNREAD, JobUnread, NotStarted
from warmcell.runner.streams import Capture

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Literal
else:  # their halves in C: the rest takes longer to load
    import _signal as signal

_SIGNAL_BASE = 128


@dataclass(slots=True)
class Exit:
    """How a run ended, as facts."""

    stdout: Capture
    stderr: Capture
    #: By the monotonic clock, when the guest's code could run; and for how long it then did.
    began: float
    duration: float
    #: Why we ended it: "timeout", "cpu", "cancelled", "never began"; "" where we did not.
    cut_short: str = ""
    #: The wait status that init saw, or None when init never told.
    status: int | None = None
    #: The limit at which init ended it: "memory", "cpu", "disk".
    verdict: str = ""
    cpu_time: float = 0.0
    peak_memory: int = 0
    denials: list[list[str]] = field(default_factory=list)
    #: Limits that the kernel keeps by refusing, which the run was seen to have met: "processes", "disk".
    limits_met: list[str] = field(default_factory=list)
    #: exec's errno, or 0 where it never came to that; a blank; what and why.
    start_failure: str = ""

    @property
    def ended_by_itself(self) -> bool:
        """It did, at the last moment, even if we had already decided to end it: we only ever kill."""
        return self.status is not None and self.status != signal.SIGKILL

    @property
    def is_timeout(self) -> bool:
        return self.cut_short == "timeout" and not self.ended_by_itself

    @property
    def is_over_cpu(self) -> bool:
        return "cpu" in (self.cut_short, self.verdict) and not self.ended_by_itself


@dataclass(frozen=True, slots=True)
class Terms:
    """What the run was given."""

    timeout: float
    memory_mb: int
    enforced: Enforced
    cpu_seconds: float | None = None
    #: By the monotonic clock, when the caller asked for it.
    asked: float = 0.0
    phase: Literal["run", "build"] = "run"
    #: A wrapper such as bwrap stood between us and the guest and made 128 + n of its signals, as shells do.
    is_wrapped: bool = False
    open_files: int = ENOUGH_OPEN_FILES


def _not_started(failure: str, terms: Terms) -> SandboxError:
    number, _, reason = failure.partition(" ")
    is_unread = failure == JOB_UNREAD
    is_short = is_unread or reason.endswith(os.strerror(errno.EMFILE))
    if is_short and terms.open_files < ENOUGH_OPEN_FILES:
        hint = f"Limits(open_files={ENOUGH_OPEN_FILES}) is enough for every language"
        return InvalidRequest("are too few for the program to start", field="limits.open_files", hint=hint)
    return (JobUnread if is_unread else NotStarted)(int(number), reason)


def judge(end: Exit, terms: Terms, kernel: KernelUsage, denials: list[Denial]) -> ExecResult:
    """The result, or `ExecutionTimeout` / `MemoryExceeded` with the partial result, or `ExecutionFailed`."""
    is_memory = end.verdict == "memory" or kernel.memory_kills > 0
    if end.start_failure and not is_memory:
        raise _not_started(end.start_failure, terms)
    if end.cut_short == "never began" and not end.ended_by_itself:
        raise ExecutionFailed("the guest had its job and never began: this host has no time for it")
    is_over_cpu = end.is_over_cpu
    was_cut_short = is_over_cpu or end.is_timeout
    if end.status is None and not (was_cut_short or is_memory):
        raise ExecutionFailed("the sandbox ended before it could report; something outside killed it")
    if kernel.outside_kills and end.status == signal.SIGKILL and not was_cut_short:
        raise ExecutionFailed("the guest was killed because memory around Warmcell ran out, not its own limit")
    result = _result(end, terms, kernel, denials, is_over_cpu)
    if is_memory:
        raise MemoryExceeded(terms.memory_mb, result)
    if is_over_cpu:
        raise ExecutionTimeout(terms.cpu_seconds or 0.0, result, phase=terms.phase, clock="cpu")
    if was_cut_short:
        raise ExecutionTimeout(terms.timeout, result, phase=terms.phase)
    return result


def _result(end: Exit, terms: Terms, kernel: KernelUsage, denials: list[Denial], is_over_cpu: bool) -> ExecResult:
    exit_code, number = _exit_code(end, terms.is_wrapped, is_over_cpu)
    stdout, stdout_bytes = text_of(end.stdout)
    stderr, stderr_bytes = text_of(end.stderr)
    return ExecResult(
        stdout=stdout,
        stderr=stderr,
        exit_code=exit_code,
        signal=number,
        duration=end.duration,
        stdout_bytes=stdout_bytes,
        stderr_bytes=stderr_bytes,
        stdout_truncated=end.stdout.total > end.stdout.cap,
        stderr_truncated=end.stderr.total > end.stderr.cap,
        usage=Usage(
            # A wrapper's own init reaps the guest, and init then never hears what was used beyond the limit.
            cpu_time=max(kernel.cpu_time or end.cpu_time, (is_over_cpu and terms.cpu_seconds) or 0.0),
            wall_time=end.duration,
            peak_memory_bytes=max(kernel.peak_memory, 0) or end.peak_memory,
        ),
        enforced=terms.enforced,
        denials=denials,
        queued=max(0.0, end.began - terms.asked),
    )


def _exit_code(end: Exit, is_wrapped: bool, is_over_cpu: bool) -> tuple[int, int | None]:
    if is_over_cpu:
        return _SIGNAL_BASE + signal.SIGXCPU, int(signal.SIGXCPU)
    if end.verdict == "disk":
        return _SIGNAL_BASE + signal.SIGXFSZ, int(signal.SIGXFSZ)
    status = signal.SIGKILL if end.status is None else end.status
    if os.WIFSIGNALED(status):
        return _SIGNAL_BASE + os.WTERMSIG(status), os.WTERMSIG(status)
    code = os.WEXITSTATUS(status)
    is_folded = is_wrapped and _SIGNAL_BASE < code <= _SIGNAL_BASE + signal.SIGSYS
    return code, code - _SIGNAL_BASE if is_folded else None


def text_of(capture: Capture) -> tuple[str, bytes]:
    """What a caller reads, and the bytes of it; a cut is announced, and never splits a character."""
    kept = bytes(capture.kept)
    if capture.total <= capture.cap:
        return kept.decode("utf-8", "replace"), kept
    kept = cut_at_character(kept)
    left_out = capture.total - len(kept)
    return f"{kept.decode('utf-8', 'replace')}\n... (truncated, {left_out} bytes left out)", kept


def cut_at_character(data: bytes) -> bytes:
    """Without the first bytes of a UTF-8 character whose rest was cut off; other bytes stay as they are."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        return data[:-back] if needed > back else data
    return data
