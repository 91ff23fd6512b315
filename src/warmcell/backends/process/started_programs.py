"""Programs of a live cage, from when they were asked for."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

from warmcell.backends.process.live_ends import Ending
from warmcell.core.errors import SandboxError
from warmcell.core.records import dataclass
from warmcell.core.types import Denial, Enforced, ExecResult
from warmcell.sessions.conversation import Message

if TYPE_CHECKING:
    from warmcell.backends.process.live import LiveCage


class StartedProgram:
    """One program or worker of a live cage. `ended` has its `Ending`, or the error that the end of the cage is."""

    def __init__(self, cage: LiveCage, pid: int, failure: int, mark: str, began: float) -> None:
        self._cage = cage
        self.began = began
        #: What its cage was refused while it ran, by whomever in it; whole when it has ended.
        self.denials: list[Denial] = []
        #: What all that it starts has in its environment.
        self._mark = mark
        #: As the guest sees it.
        self.pid = pid
        #: exec's errno where there was nothing to execute: what runs then only says so, and ends as a shell would.
        self.failure = failure
        self.ended: Future[Ending] = Future()
        self.ended.set_running_or_notify_cancel()

    @property
    def enforced(self) -> Enforced:
        return self._cage.world.effective.enforced

    def why_ended(self, result: ExecResult) -> SandboxError:
        """Where it ended with its cage: what that was."""
        return self._cage.ended.result().error_with(result, self._cage.world.effective.limits)

    def signal(self, number: int) -> None:
        """To it and its process group. Nothing happens where it has ended."""
        self._cage.ask_of(self.pid, "signal", signal=int(number))

    def kill(self) -> None:
        """Ends it and everything that it started, also where it has ended itself."""
        self._cage.ask_of(self.pid, "signal", signal=9, tree=True, mark=self._mark)

    def kill_soon(self) -> None:
        """The same without waiting for it, for the loop of the cage."""
        self._cage.ask_soon(self.pid, "signal", signal=9, tree=True, mark=self._mark)

    def resize(self, columns: int, rows: int) -> None:
        self._cage.ask_of(self.pid, "resize", pty=[columns, rows])


@dataclass(frozen=True, slots=True)
class Starting:
    """A start that was asked for. `started` has the program from the moment that the answer is there."""

    answer: Future[Message]
    started: list[StartedProgram]
    cwd: str

    def kill_soon(self) -> None:
        for program in self.started:
            program.kill_soon()
