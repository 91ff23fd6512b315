"""Programs of a live cage, and the exits of programs and of the cage itself, as errors for the caller."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from warmcell.backends.process.cell_template import CellTemplate
from warmcell.core.errors import (
    ExecutionFailed,
    ExecutionTimeout,
    InvalidRequest,
    MemoryExceeded,
    SandboxError,
    SessionEnded,
)
from warmcell.core.light import suppress
from warmcell.core.lines import one_line
from warmcell.core.records import dataclass
from warmcell.core.types import Denial, EffectiveLimits, Enforced, ExecResult
from warmcell.lifetime.descriptors import shortage_from_message
from warmcell.runner.cell import Cell
from warmcell.runner.denials import MOST_DENIALS, denials_from
from warmcell.runner.outcome import REPLACED, replacement_reason
from warmcell.sessions.agent_channel import Message

if TYPE_CHECKING:
    from warmcell.runner.starvation import GuestClock

_LONGEST_QUOTE, _LONGEST_REASON = 300, 200
#: Of the kernel.
_LAST_SIGNAL = 64
_MOST_PEAK, _MOST_SECONDS = 1 << 62, 1e12
#: The wait status of a program that the kernel has killed for the memory: of SIGKILL, and without a core file.
_KILLED = 9
#: The reason of a cage that ended because it was idle, or that the host found over its limit of memory.
IDLE = "it was idle for longer than idle_timeout"
OVER_MEMORY = "the live cage exceeded its memory limit"


@dataclass(frozen=True, slots=True)
class ProgramExit:
    """The exit of a program, as the agent reports it. `status` is the wait status."""

    status: int
    cpu_time: float
    peak_memory: int


@dataclass(frozen=True, slots=True)
class CageEnd:
    """Why a live cage ended. `limit`: the one that it exceeded, "memory", "cpu", "disk" or "gpu memory", or "".

    `start_failure`: why its agent could not be started.
    """

    reason: str
    limit: str = ""
    start_failure: str = ""

    def error(self) -> SandboxError:
        if self.start_failure:
            failed = ExecutionFailed(f"could not start the live cage: {self.start_failure}")
            return shortage_from_message(self.start_failure, "start the live cage") or failed
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


def is_wait_status(status: object) -> TypeGuard[int]:
    """Whether wait() can return this status for an ended process."""
    if not isinstance(status, int) or isinstance(status, bool) or not 0 <= status <= 0xFFFF:
        return False
    return os.WIFEXITED(status) or (os.WIFSIGNALED(status) and status <= 0xFF and os.WTERMSIG(status) <= _LAST_SIGNAL)


def exit_from(message: Message) -> ProgramExit | None:
    """The agent's report on a program's exit; None if it is invalid."""
    status, cpu, peak = (message.get(name) for name in ("status", "cpu", "peak"))
    if not is_wait_status(status) or not isinstance(peak, int) or not isinstance(cpu, int | float):
        return None
    return ProgramExit(status, float(cpu), min(max(0, peak), _MOST_PEAK)) if 0 <= cpu < _MOST_SECONDS else None


def cage_end_from(
    report: dict[str, Any], reason: str, last_words: bytes | bytearray, start_failure: str = ""
) -> CageEnd:
    if reason:
        return CageEnd(reason, "memory" if reason == OVER_MEMORY else "")
    verdict = report.get("verdict", "")
    if verdict == "gpu unreadable":
        return CageEnd("the driver does not report GPU memory, so gpu_memory_mb cannot be enforced")
    if verdict.startswith(REPLACED):
        return CageEnd(explain_replacement(verdict.removeprefix(REPLACED)))
    if verdict and verdict != "blind":  # a guest that exits while the watcher looks at it has exceeded no limit
        return CageEnd(f"the live cage exceeded its {verdict} limit", verdict)
    status = report.get("exit")
    if status is not None and os.WIFSIGNALED(status):
        return CageEnd(f"its agent was killed by signal {os.WTERMSIG(status)}")
    if start_failure:
        return CageEnd("its agent did not start", start_failure=start_failure.partition(" ")[2])
    lines = last_words.decode("utf-8", "replace").strip().splitlines()
    # The guest can write there, so it is quoted, without control characters.
    quote = f': "{one_line(lines[-1], _LONGEST_QUOTE)}"' if lines else ""
    return CageEnd(f"its agent ended{quote}")


def explain_replacement(path: str) -> str:
    return f"{replacement_reason(path)}; a sandbox with changes='ask' gives guests a layer of their own"


def start_error(answer: Message, cwd: str) -> SandboxError:
    number, error = answer.get("errno"), answer.get("error")
    # The guest may have written it. Anything but text may be too deep to be converted.
    reason = one_line(error, _LONGEST_REASON) if isinstance(error, str) else "no reason given"
    if number in (2, 20):
        return InvalidRequest(f"no such directory in the sandbox: {cwd}", field="cwd")
    if number in (11, 12, 24):
        hint = "end some, or raise Limits(processes=..., memory_mb=..., open_files=...)"
        return ExecutionFailed(f"the live cage has no room for another process: {reason}", hint=hint)
    return ExecutionFailed(f"could not start the process: {reason}")


class LiveDenials:
    """Thread-safe. `targets`: paths that the policy shows, whose files are never reported."""

    def __init__(self, targets: tuple[str, ...]) -> None:
        self._targets = targets
        self._last: dict[Denial, float] = {}
        self._lock = threading.Lock()

    def add(self, denial: Denial, silence: float = 0.0) -> None:
        """For `silence` seconds, the cage does not report whether it was repeated: it counts as if it was."""
        with self._lock:
            if denial in self._last or len(self._last) < MOST_DENIALS:
                self._last[denial] = time.monotonic() + silence

    def note(self, kind: str, what: str, silence: float) -> None:
        """Adds a denial in the cage's own form."""
        for denial in denials_from([[kind, what]], self._targets):
            self.add(denial, silence)

    def since(self, moment: float) -> list[Denial]:
        with self._lock:
            return [denial for denial, last in self._last.items() if last >= moment]


class MemoryKills:
    """How many processes of a cage the kernel has killed for its memory limit; 0 without a control group.

    The last count where the counters cannot be read: an error would end the loop of the cage.
    """

    def __init__(self, cell: Cell) -> None:
        self._cell, self._last = cell, 0

    def count(self) -> int:
        group = self._cell.group
        with suppress(OSError):  # no descriptors left
            self._last = max(self._last, 0 if group is None else group.usage().memory_kills)
        return self._last


class ProgramCage(Protocol):
    """The methods of the live cage that a program uses."""

    template: CellTemplate
    ended: Future[CageEnd]

    def request(self, pid: int, op: str, **fields: Any) -> Message: ...
    async def request_async(self, pid: int, op: str, **fields: Any) -> Message: ...
    def send(self, pid: int, op: str, **fields: Any) -> Future[Message]: ...
    def end_soon(self, reason: str) -> None: ...
    def denials_since(self, moment: float) -> list[Denial]: ...
    def memory_kills(self) -> int: ...
    def end_if_over_memory(self, peak: int) -> bool: ...
    def start_clock(self) -> GuestClock: ...


def end_if_unguarded(cage: ProgramCage) -> str:
    """Ends a cage whose guest could write what it must only read, because the host has replaced it; returns the reason.

    Its manager does so too, as soon as it reads the kernel's record of it.
    """
    if (path := cage.template.find_replaced()) is None:
        return ""
    cage.end_soon(reason := explain_replacement(path))
    return reason


class StartedProgram:
    """One program or worker of a live cage. `ended` has its `ProgramExit`, or the error that ended the cage."""

    def __init__(self, cage: ProgramCage, pid: int, failure: int, mark: str, began: float) -> None:
        self._cage = cage
        self.began = began
        #: Denials of the whole cage while it ran; complete when it has ended.
        self.denials: list[Denial] = []
        #: The mark in the environment of everything that it starts.
        self._mark = mark
        #: Its pid in the guest.
        self.pid = pid
        #: The errno of exec, or 0. After a failed exec the process only prints the error and exits as a shell would.
        self.failure = failure
        self._memory_kills = cage.memory_kills()
        self.ended: Future[ProgramExit] = Future()
        self.ended.set_running_or_notify_cancel()
        #: It has exited, and its exit is reported when the last output of its terminal was read; called at that moment.
        self.is_ending = False
        self.on_ending: Callable[[], object] = lambda: None

    def note_ending(self) -> None:
        """In the loop of its cage."""
        self.is_ending = True
        self.on_ending()

    @property
    def enforcement(self) -> Enforced:
        return self._cage.template.effective.enforced

    def why_ended(self, result: ExecResult) -> SandboxError:
        """The error that ended its cage."""
        return self._cage.ended.result().error_with(result, self._cage.template.effective.limits)

    def limit_error(self, result: ExecResult) -> SandboxError | None:
        """The error of the limit that ended it; None if it was something else. It has ended."""
        if self.ended.exception() is not None:
            error = self.why_ended(result)
            return None if isinstance(error, SessionEnded) else error
        # What it started may have been killed for the memory long before it crashed by itself.
        is_killed = self.ended.result().status == _KILLED and self._cage.memory_kills() > self._memory_kills
        return MemoryExceeded(self._cage.template.effective.limits.memory_mb, result) if is_killed else None

    def end_if_over_memory(self, peak: int) -> bool:
        """Whether its cage is being ended for its memory. `peak`: its own report of its peak."""
        return self._cage.end_if_over_memory(peak)

    def denials_since(self, moment: float) -> list[Denial]:
        """The denials of its cage since that time."""
        return self._cage.denials_since(moment)

    def start_clock(self) -> GuestClock:
        """Measures its cage."""
        return self._cage.start_clock()

    async def signal(self, number: int) -> None:
        """Signals it and its process group. Does nothing if it has ended."""
        await self._cage.request_async(self.pid, "signal", signal=int(number))

    def signal_soon(self, number: int, *, alone: bool = False) -> Future[Message]:
        """`signal` without waiting for the answer. `alone`: not its process group."""
        return self._cage.send(self.pid, "signal", signal=int(number), alone=alone)

    async def kill(self) -> None:
        """Kills it and everything that it started, even if it has ended itself."""
        self._check_kill(await self._cage.request_async(self.pid, "signal", **self._tree))

    def kill_blocking(self) -> None:
        self._check_kill(self._cage.request(self.pid, "signal", **self._tree))

    def kill_soon(self) -> Future[Message]:
        """`kill` without waiting for the answer."""

        def check(done: Future[Message]) -> None:
            if done.exception() is None:  # otherwise the cage has ended
                self._check_kill(done.result())

        answer = self._cage.send(self.pid, "signal", **self._tree)
        answer.add_done_callback(check)
        return answer

    def _check_kill(self, answer: Message) -> None:
        """Ends the cage if its agent could not look for the processes: then it has killed none of them."""
        if "error" in answer:
            self._cage.end_soon("its agent could not kill a program")

    def end_cage(self, reason: str) -> None:
        """Ends the whole cage from outside, if the agent does not end the program."""
        self._cage.end_soon(reason)

    @property
    def _tree(self) -> dict[str, Any]:
        return {"signal": 9, "tree": True, "mark": self._mark}

    async def resize(self, columns: int, rows: int) -> None:
        await self._cage.request_async(self.pid, "resize", pty=[columns, rows])


@dataclass(frozen=True, slots=True)
class PendingStart:
    """A requested start. `started` has the program once the agent has answered."""

    answer: Future[Message]
    started: list[StartedProgram]
    cwd: str

    def kill_soon(self) -> None:
        for program in self.started:
            program.kill_soon()
