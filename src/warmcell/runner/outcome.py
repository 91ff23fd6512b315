"""Judges how a run ended: from facts to `ExecResult`, or to the error of the limit that ended it. Pure module."""

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
else:  # their halves in C: the rest takes longer to load
    import _signal as signal

_SIGNAL_BASE, _CANNOT_EXECUTE = 128, 126
#: What execve says of a file that is not a program that it can load: malformed, or with such an interpreter.
_BAD_PROGRAM = frozenset(
    (errno.ENOEXEC, errno.EINVAL, errno.ENOENT, errno.EACCES, errno.ELIBBAD, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
)
#: Of the disk that the run was given, if it has one of its own.
_NO_ROOM = (os.strerror(errno.ENOSPC), os.strerror(errno.EFBIG))


@dataclass(frozen=True, slots=True)
class FilePages:
    """How many bytes of files such a program may have mapped: if it was never looked at, and since the last look."""

    usual: int
    new: int


@dataclass(frozen=True, slots=True)
class ResidentPeak:
    """What the kernel reports at the end of a guest whose peak of resident memory was over its limit, in bytes.

    The peak is an upper bound of what the guest took. It includes pages shared with the process that it was forked
    from, and pages of files, which belong to the page cache.
    """

    peak: int
    #: With the process that it was forked from: anonymous memory, and file pages if it was never looked at.
    shared: int
    #: The most file pages that one of its processes had mapped, as the watcher saw it; -1 if it never looked.
    files: int

    def own_at_least(self, mapped: FilePages) -> int:
        """What was certainly its own, and not the page cache's."""
        return self.peak - self.shared - (mapped.usual if self.files < 0 else self.files + mapped.new)


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """The most memory that the guest had on one device, in bytes; and for how long its kernels executed, or -1."""

    peak: int
    seconds: float


@dataclass(slots=True)
class Exit:
    """How a run ended, as facts."""

    stdout: Capture
    stderr: Capture
    #: On the monotonic clock, when the guest's code could run; and for how long it ran.
    began: float
    duration: float
    #: Why we ended it: "timeout", "cpu", "output", "cancelled", "never began", "starved"; "" if we did not.
    cut_short: str = ""
    #: The wait status of the guest, or None if it was never reported.
    status: int | None = None
    #: The limit at which the watcher ended it: "memory", "cpu", "disk", "gpu memory"; "gpu unreadable" if it could not
    #: be measured.
    verdict: str = ""
    cpu_time: float = 0.0
    peak_memory: int = 0
    denials: list[list[str]] = field(default_factory=list)
    #: Limits that the kernel enforces by an error, and that the run met: "processes", "disk".
    limits_met: list[str] = field(default_factory=list)
    resident: ResidentPeak | None = None
    #: exec's errno, or 0 if exec was not reached; a blank; the program and the reason.
    start_failure: str = ""
    #: None if the guest had no GPU, or ended before the watcher looked.
    gpu: GpuUsage | None = None

    @property
    def is_own_end(self) -> bool:
        """Whether it ended by itself, even if we had decided to end it: we end guests only by SIGKILL."""
        return self.status is not None and self.status != signal.SIGKILL

    def is_over_memory(self, limit: int, mapped: FilePages) -> bool:
        """Whether the peak proves it, though no look came in time to end the run."""
        return self.resident is not None and self.resident.own_at_least(mapped) > limit

    @property
    def is_timeout(self) -> bool:
        return self.cut_short == "timeout" and not self.is_own_end

    @property
    def is_over_output(self) -> bool:
        return self.cut_short == "output" and not self.is_own_end

    @property
    def is_over_cpu(self) -> bool:
        return "cpu" in (self.cut_short, self.verdict) and not self.is_own_end


@dataclass(frozen=True, slots=True)
class Terms:
    """What the run was given."""

    timeout: float
    memory_mb: int
    enforced: Enforced
    cpu_seconds: float | None = None
    #: On the monotonic clock, when the caller asked for it.
    asked: float = 0.0
    phase: Literal["run", "build"] = "run"
    #: A wrapper such as bwrap stands between us and the guest and turns signal n into status 128 + n, as shells do.
    is_wrapped: bool = False
    #: The program itself was compiled from the guest's code, so it is the guest's fault if the kernel refuses it.
    is_guest_program: bool = False
    open_files: int = ENOUGH_OPEN_FILES
    gpu_memory_mb: int | None = None


def _not_started(failure: str, terms: Terms) -> SandboxError:
    number, _, reason = failure.partition(" ")
    is_unread = failure == JOB_UNREAD
    is_short = is_unread or reason.endswith(os.strerror(errno.EMFILE))
    if is_short and terms.open_files < ENOUGH_OPEN_FILES:
        hint = f"Limits(open_files={ENOUGH_OPEN_FILES}) is enough for every language"
        return InvalidRequest("are too few for the program to start", field="limits.open_files", hint=hint)
    if reason.endswith(_NO_ROOM) and "sized tmpfs" in str(terms.enforced.disk):
        hint = "raise Limits(disk_mb=...), or `ulimit -f` if that is lower"
        return InvalidRequest("does not fit into the run's disk", field="code", hint=hint)
    return (JobUnread if is_unread else NotStarted)(int(number), reason)


def _as_cannot_execute(end: Exit) -> Exit:
    """The result that a shell gives."""
    stderr = Capture(end.stderr.cap)
    stderr.add(f"cannot execute {end.start_failure.partition(' ')[2]}\n".encode())
    return replace(end, stderr=stderr, status=_CANNOT_EXECUTE << 8, start_failure="")


def judge(
    end: Exit, terms: Terms, kernel: KernelUsage, denials: list[Denial], connections: tuple[Connection, ...] = ()
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
    if end.cut_short == "never began" and not end.is_own_end:
        raise ExecutionFailed("the guest received its job but did not start: this host is overloaded")
    if end.cut_short == "starved" and not end.is_own_end and not is_memory:
        raise ExecutionFailed(f"the guest had no processor for most of {end.duration:.0f} s: this host is overloaded")
    is_over_cpu = end.is_over_cpu
    was_cut_short = is_over_cpu or end.is_timeout
    if end.status is None and not (was_cut_short or is_memory or end.is_over_output):
        raise ExecutionFailed("the sandbox ended before it could report; something outside killed it")
    if kernel.outside_kills and end.status == signal.SIGKILL and not was_cut_short:
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
    if was_cut_short:
        raise ExecutionTimeout(terms.timeout, result, phase=terms.phase)
    return result


def _result(
    end: Exit,
    terms: Terms,
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
            # A wrapper's own init reaps the guest, so that what was used beyond the limit is not reported.
            cpu_time=max(kernel.cpu_time or end.cpu_time, (is_over_cpu and terms.cpu_seconds) or 0.0),
            wall_time=end.duration,
            peak_memory_bytes=max(kernel.peak_memory, 0) or end.peak_memory,
            gpu_time=end.gpu.seconds if end.gpu is not None and end.gpu.seconds >= 0 else None,
            gpu_peak_memory_bytes=None if end.gpu is None else end.gpu.peak,
        ),
        enforced=terms.enforced,
        denials=denials,
        queued=max(0.0, end.began - terms.asked),
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
    if capture.total > capture.cap:
        kept = cut_at_character(kept)
    return kept.decode("utf-8", "replace"), kept


def cut_at_character(data: bytes) -> bytes:
    """Without the first bytes of a UTF-8 character whose rest was cut off; other bytes stay as they are."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        return data[:-back] if needed > back else data
    return data
