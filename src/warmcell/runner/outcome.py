"""Judges how a run ended: returns an `ExecResult` or raises the error of the limit that ended it. Pure module."""

from __future__ import annotations

import errno
import os

from warmcell.core.errors import ExecutionFailed, ExecutionTimeout, InvalidRequest, MemoryExceeded, SandboxError
from warmcell.core.records import dataclass, field, replace
from warmcell.core.types import ENOUGH_OPEN_FILES, Connection, Denial, Enforced, ExecResult, Usage
from warmcell.runner.cgroups import KernelUsage as KernelUsage
from warmcell.runner.not_started import JOB_UNREAD, JobUnread, NotStarted
from warmcell.runner.streams import Capture

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Literal
else:  # the C module, which loads faster
    import _signal as signal

_SIGNAL_BASE, _CANNOT_EXECUTE = 128, 126
#: Errors of execve for a file that is malformed or names an interpreter that is missing or malformed.
_BAD_PROGRAM = frozenset(
    (errno.ENOEXEC, errno.EINVAL, errno.ENOENT, errno.EACCES, errno.ELIBBAD, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
)
_NO_ROOM = (os.strerror(errno.ENOSPC), os.strerror(errno.EFBIG))


@dataclass(frozen=True, slots=True)
class FilePages:
    """Estimates of the bytes of files that such a program has mapped."""

    #: In total, for a guest that the watcher never measured.
    usual: int
    #: Since the watcher's last measurement.
    new: int


@dataclass(frozen=True, slots=True)
class ResidentPeak:
    """The peak resident memory of a guest, reported by the kernel at its end if it was over the limit. In bytes.

    The peak is an upper bound: it includes pages shared with the process that the guest was forked from, and pages of
    files, which belong to the page cache.
    """

    peak: int
    #: Shared with the process that it was forked from: anonymous memory, and file pages if it was never measured.
    shared: int
    #: The most bytes of files that one of its processes had mapped, as the watcher measured; -1 if it never did.
    files: int

    def own_at_least(self, mapped: FilePages) -> int:
        """A lower bound of the guest's own memory, without the page cache."""
        return self.peak - self.shared - (mapped.usual if self.files < 0 else self.files + mapped.new)


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """What a guest used of its GPUs."""

    #: The most bytes on one device.
    peak: int
    #: How long its kernels executed; -1 if unknown.
    seconds: float


@dataclass(slots=True)
class Exit:
    """How a run ended, as facts."""

    stdout: Capture
    stderr: Capture
    #: When the guest's code could run, on the monotonic clock.
    started_at: float
    duration: float
    #: Why we ended it: "timeout", "cpu", "output", "cancelled", "not started", "starved"; "" if we did not.
    stop_reason: str = ""
    #: The wait status of the guest, or None if it was never reported.
    status: int | None = None
    #: The limit at which the watcher ended it: "memory", "cpu", "disk", "gpu memory", or "gpu unreadable" if the
    #: driver does not report memory, "blind" if the host failed to measure; or `REPLACED` and a path.
    verdict: str = ""
    cpu_time: float = 0.0
    peak_memory: int = 0
    denials: list[list[str]] = field(default_factory=list)
    #: Limits that the kernel enforces by an error, and that the run reached: "processes", "disk".
    limits_met: list[str] = field(default_factory=list)
    resident: ResidentPeak | None = None
    #: "" or "ERRNO REASON": exec's errno, or 0 if exec was not reached, and the reason with the program's name.
    start_failure: str = ""
    #: None if the guest had no GPU or ended before it was measured.
    gpu: GpuUsage | None = None

    @property
    def is_own_end(self) -> bool:
        """Whether the guest ended by itself, even if we were about to end it: we end guests only by SIGKILL."""
        return self.status is not None and self.status != signal.SIGKILL

    def is_over_memory(self, limit: int, mapped: FilePages) -> bool:
        """Whether the peak proves that the guest exceeded the limit, even if the watcher did not measure in time."""
        return self.resident is not None and self.resident.own_at_least(mapped) > limit

    @property
    def is_timeout(self) -> bool:
        return self.stop_reason == "timeout" and not self.is_own_end

    @property
    def is_over_output(self) -> bool:
        return self.stop_reason == "output" and not self.is_own_end

    @property
    def is_over_cpu(self) -> bool:
        return "cpu" in (self.stop_reason, self.verdict) and not self.is_own_end


@dataclass(frozen=True, slots=True)
class RunTerms:
    """The limits and circumstances by which a run is judged."""

    timeout: float
    memory_mb: int
    enforced: Enforced
    cpu_seconds: float | None = None
    #: On the monotonic clock.
    requested_at: float = 0.0
    phase: Literal["run", "build"] = "run"
    #: Whether the guest is a child of a wrapper such as bwrap, which turns signal n into status 128 + n, as shells do.
    is_wrapped: bool = False
    #: Whether the program was compiled from the guest's code. Then it is the guest's fault if the kernel refuses it.
    is_guest_program: bool = False
    open_files: int = ENOUGH_OPEN_FILES
    gpu_memory_mb: int | None = None


def _not_started(failure: str, terms: RunTerms) -> SandboxError:
    number, _, reason = failure.partition(" ")
    is_unread = failure == JOB_UNREAD
    is_short = is_unread or reason.endswith(os.strerror(errno.EMFILE))
    if is_short and terms.open_files < ENOUGH_OPEN_FILES:
        hint = f"Limits(open_files={ENOUGH_OPEN_FILES}) is enough for every language"
        return InvalidRequest("is too low for the program to start", field="limits.open_files", hint=hint)
    if reason.endswith(_NO_ROOM) and "sized tmpfs" in str(terms.enforced.disk):
        hint = "raise Limits(disk_mb=...), or `ulimit -f` if that is lower"
        return InvalidRequest("does not fit into the run's disk", field="code", hint=hint)
    return (JobUnread if is_unread else NotStarted)(int(number), reason)


def _as_cannot_execute(end: Exit) -> Exit:
    """The end as a shell would report it."""
    stderr = Capture(end.stderr.cap)
    stderr.add(f"cannot execute {end.start_failure.partition(' ')[2]}\n".encode())
    return replace(end, stderr=stderr, status=_CANNOT_EXECUTE << 8, start_failure="")


#: The verdict on a cell in which a read-only mount in a writable path was lost begins with it; the path follows.
REPLACED = "replaced "


def replacement_reason(path: str) -> str:
    """The host's own programs may have done it at any time, as git does with its configuration."""
    return f"the host replaced {path!r}, which the guest could then have written: look at it before you use it"


def judge(
    end: Exit, terms: RunTerms, kernel: KernelUsage, denials: list[Denial], connections: tuple[Connection, ...] = ()
) -> ExecResult:
    """The result, or `ExecutionTimeout` / `MemoryExceeded` with the partial result, or `ExecutionFailed`."""
    is_memory = end.verdict == "memory" or kernel.memory_kills > 0
    if end.start_failure and not is_memory:
        if not (terms.is_guest_program and int(end.start_failure.partition(" ")[0]) in _BAD_PROGRAM):
            raise _not_started(end.start_failure, terms)
        end = _as_cannot_execute(end)
    if end.verdict == "gpu unreadable":
        reason = "the driver does not report GPU memory, so gpu_memory_mb cannot be enforced"
        raise ExecutionFailed(reason, hint="leave Limits(gpu_memory_mb=...) out; `warmcell doctor` tries it")
    if end.verdict.startswith(REPLACED):
        reason = replacement_reason(end.verdict.removeprefix(REPLACED))
        raise ExecutionFailed(f"ended: {reason}", hint="run it again; changes='ask' gives guests a layer of their own")
    if end.stop_reason == "not started" and not end.is_own_end:
        raise ExecutionFailed("the guest received its job but did not start: this host is overloaded")
    if end.stop_reason == "starved" and not end.is_own_end and not is_memory:
        raise ExecutionFailed(f"the guest had no processor for most of {end.duration:.0f} s: this host is overloaded")
    is_over_cpu = end.is_over_cpu
    is_over_time = is_over_cpu or end.is_timeout
    if end.status is None and not (is_over_time or is_memory or end.is_over_output):
        raise ExecutionFailed("the sandbox ended before it could report; something outside killed it")
    if end.verdict == "blind" and not (end.is_own_end or is_over_time or is_memory or end.is_over_output):
        raise ExecutionFailed("the guest was ended because this host could not measure what it used")
    if kernel.outside_kills and end.status == signal.SIGKILL and not is_over_time:
        raise ExecutionFailed(
            "the guest was killed within its own limit, because the memory of the host or container ran out"
        )
    result = _result(end, terms, kernel, denials, connections, is_over_cpu)
    if is_memory:
        raise MemoryExceeded(terms.memory_mb, result)
    if end.verdict == "gpu memory":
        raise MemoryExceeded(terms.gpu_memory_mb or 0, result, is_gpu=True)
    if is_over_cpu:
        raise ExecutionTimeout(terms.cpu_seconds or 0.0, result, phase=terms.phase, clock="cpu")
    if is_over_time:
        raise ExecutionTimeout(terms.timeout, result, phase=terms.phase)
    return result


def _result(
    end: Exit,
    terms: RunTerms,
    kernel: KernelUsage,
    denials: list[Denial],
    connections: tuple[Connection, ...],
    is_over_cpu: bool,
) -> ExecResult:
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
            # A wrapper's init reaps the guest, so the kernel may report less than the limit that ended it.
            cpu_time=max(kernel.cpu_time or end.cpu_time, (is_over_cpu and terms.cpu_seconds) or 0.0),
            wall_time=end.duration,
            peak_memory_bytes=max(kernel.peak_memory, 0) or end.peak_memory,
            gpu_time=end.gpu.seconds if end.gpu is not None and end.gpu.seconds >= 0 else None,
            gpu_peak_memory_bytes=None if end.gpu is None else end.gpu.peak,
        ),
        enforced=terms.enforced,
        denials=denials,
        queued=max(0.0, end.started_at - terms.requested_at),
        connections=connections,
    )


def _exit_code(end: Exit, is_wrapped: bool, is_over_cpu: bool) -> tuple[int, int | None]:
    if is_over_cpu:
        return _SIGNAL_BASE + signal.SIGXCPU, int(signal.SIGXCPU)
    if end.verdict == "disk" or end.is_over_output:
        return _SIGNAL_BASE + signal.SIGXFSZ, int(signal.SIGXFSZ)
    status = signal.SIGKILL if end.status is None else end.status
    if os.WIFSIGNALED(status):
        return _SIGNAL_BASE + os.WTERMSIG(status), os.WTERMSIG(status)
    code = os.WEXITSTATUS(status)
    is_folded = is_wrapped and _SIGNAL_BASE < code <= _SIGNAL_BASE + signal.SIGSYS
    return code, code - _SIGNAL_BASE if is_folded else None


def text_of(capture: Capture) -> tuple[str, bytes]:
    """The guest's output as text and as bytes. Truncated output ends at a character boundary."""
    kept = bytes(capture.kept)
    if capture.total > capture.cap:  # as a property it would be a call more for each run
        kept = cut_at_character(kept)
    return kept.decode("utf-8", "replace"), kept


def cut_at_character(data: bytes) -> bytes:
    """The data without an incomplete UTF-8 character at its end. Other invalid bytes are kept."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        return data[:-back] if needed > back else data
    return data
