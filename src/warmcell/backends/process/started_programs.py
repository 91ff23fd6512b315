"""Programs of a live cage: starting, running and ended."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import Any, Protocol

from warmcell.backends.process.cell_template import CellTemplate
from warmcell.backends.process.live_exit import CageEnd, ProgramExit
from warmcell.core.errors import MemoryExceeded, SandboxError, SessionEnded
from warmcell.core.records import dataclass
from warmcell.core.types import Denial, Enforced, ExecResult
from warmcell.sessions.agent_channel import Message


class ProgramCage(Protocol):
    """The methods of the live cage that a program uses."""

    template: CellTemplate
    ended: Future[CageEnd]

    def request(self, pid: int, op: str, **fields: Any) -> None: ...
    async def request_async(self, pid: int, op: str, **fields: Any) -> None: ...
    def send(self, pid: int, op: str, **fields: Any) -> None: ...
    def end_soon(self, reason: str) -> None: ...
    def denials_since(self, moment: float) -> list[Denial]: ...
    def memory_kills(self) -> int: ...


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
        is_killed = os.WIFSIGNALED(self.ended.result().status) and self._cage.memory_kills() > self._memory_kills
        return MemoryExceeded(self._cage.template.effective.limits.memory_mb, result) if is_killed else None

    def denials_since(self, moment: float) -> list[Denial]:
        """What its cage was refused since then."""
        return self._cage.denials_since(moment)

    async def signal(self, number: int) -> None:
        """Signals it and its process group. Does nothing if it has ended."""
        await self._cage.request_async(self.pid, "signal", signal=int(number))

    def signal_soon(self, number: int) -> None:
        """`signal` without waiting."""
        self._cage.send(self.pid, "signal", signal=int(number))

    async def kill(self) -> None:
        """Kills it and everything that it started, even if it has ended itself."""
        await self._cage.request_async(self.pid, "signal", **self._tree)

    def kill_blocking(self) -> None:
        self._cage.request(self.pid, "signal", **self._tree)

    def kill_soon(self) -> None:
        """`kill` without waiting."""
        self._cage.send(self.pid, "signal", **self._tree)

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
