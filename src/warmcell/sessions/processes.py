"""The programs of one live cage as the host knows them: what runs, what has ended, and what they wrote."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from warmcell.core.errors import SandboxError
from warmcell.core.output_events import OutputEvent
from warmcell.core.records import dataclass
from warmcell.core.types import Denial, Enforced, ExecResult
from warmcell.lifetime.descriptors import Descriptors
from warmcell.lifetime.ownership import Lock
from warmcell.sessions.loop import Loop
from warmcell.sessions.streams import Follower, Input, Output

_MOST_ENDED = 100


class ProgramEnding(Protocol):
    """How a program ended, by its wait status."""

    @property
    def status(self) -> int: ...
    @property
    def cpu_time(self) -> float: ...
    @property
    def peak_memory(self) -> int: ...


class Program(Protocol):
    """What a live cage gives for what it started."""

    pid: int
    failure: int
    #: What was refused while it ran.
    denials: list[Denial]

    @property
    def ended(self) -> Future[Any]:
        """A `ProgramEnding`, or the error that the end of its cage is."""
        ...

    @property
    def enforced(self) -> Enforced: ...
    def why_ended(self, result: ExecResult) -> SandboxError:
        """For one whose cage ended: what that was, with what the program wrote until then."""
        ...

    def signal(self, number: int) -> None: ...
    def kill(self) -> None: ...
    def kill_soon(self) -> None: ...
    def resize(self, columns: int, rows: int) -> None: ...


@dataclass(slots=True)
class Outcome:
    """The end of a live process: its wait status, or the error that ended it."""

    status: int | None
    cpu_time: float = 0.0
    peak_memory: int = 0
    error: SandboxError | None = None


class LiveProcess:
    """One of them. `finished` is set when it has ended and all that it wrote by then was taken.

    Everything that is not said to be for any thread happens in the loop of the cage.
    """

    def __init__(self, loop: Loop, program: Program, command: str, cwd: str, streams: Streams) -> None:
        self._loop, self.program = loop, program
        self.pid, self.command, self.cwd = program.pid, command, cwd
        self.outputs, self.input = streams.outputs, streams.input
        self._owned = streams.owned
        self.began = time.monotonic()
        self.duration = 0.0
        #: When we ended it, after so many seconds.
        self.timed_out: float | None = None
        self.outcome: Outcome | None = None
        self.finished: Future[Outcome] = Future()
        self.finished.set_running_or_notify_cancel()
        self._followers: list[Follower] = []
        self._is_listening = False

    def begin(self, timeout: float | None, *, is_heard: bool = False) -> None:
        """For the thread that made it, once: from here on the loop looks after it.

        One that `is_heard` will be followed: until then its output stays in the pipes, as it may be more than is kept.
        """

        def begin() -> None:
            if not is_heard:
                self._listen_again()
            if timeout is not None:
                self._loop.call_later(timeout, lambda: self._run_out(timeout))
            self.program.ended.add_done_callback(lambda _: self._end())

        if not self._loop.call(begin):
            self._end()

    @property
    def is_running(self) -> bool:
        return self.outcome is None

    def follow(self, on_ready: Callable[[], None]) -> Follower:
        """For any thread: what is kept, then what comes, until the process has ended."""
        follower = Follower(on_ready, lambda: self._loop.call(self._listen_again))

        def begin() -> None:
            for output in self.outputs:
                kept = output.ring.kept
                follower.starts[output.name] = output.ring.total - len(kept)
                if kept:
                    follower.add(OutputEvent(output.name, kept))  # type: ignore[arg-type]
                output.followers.append(follower)
            self._followers.append(follower)
            if not self._is_listening:
                self._listen_again()
            if self.outcome is not None:
                self._let_go(follower)

        if not self._loop.call(begin):
            begin()  # the loop is over, so nobody else is at it
        return follower

    def unfollow(self, follower: Follower) -> None:
        """For any thread: nobody takes what it has."""
        if follower.was_let_go:  # by the end of the process: the loop need not be woken for it
            return

        def leave() -> None:
            self._let_go(follower)
            self._listen_again()

        self._loop.call(leave)

    def forget(self) -> None:
        """Nobody will ask for it again: its pipes go, whoever still writes to them."""
        for output in self.outputs:
            output.close()
        self._owned.close()

    def _let_go(self, follower: Follower) -> None:
        for output in self.outputs:
            if follower in output.followers:
                output.followers.remove(follower)
        if follower in self._followers:
            self._followers.remove(follower)
        follower.finish()

    def _listen_again(self) -> None:
        self._is_listening = True
        for output in self.outputs:
            output.listen()

    def _run_out(self, timeout: float) -> None:
        if self.outcome is None:
            self.timed_out = timeout
            self.program.kill_soon()

    def _end(self) -> None:
        """It has ended; what it wrote is in its pipes, whole, and taken now."""
        self.duration = time.monotonic() - self.began
        for output in self.outputs:
            output.take_all()
        self.input.close()
        error = self.program.ended.exception()
        if error is None:
            ending: ProgramEnding = self.program.ended.result()
            self.outcome = Outcome(ending.status, ending.cpu_time, ending.peak_memory)
        else:
            assert isinstance(error, SandboxError)
            self.outcome = Outcome(None, error=error)
            self.forget()  # with the cage everybody who could write is gone
        self.finished.set_result(self.outcome)  # first: who has heard the last of the output knows how it ended
        for follower in list(self._followers):
            self._let_go(follower)
        self._listen_again()

    @property
    def exit_code(self) -> int | None:
        outcome = self.outcome
        if outcome is None or outcome.status is None:
            return None
        code = os.waitstatus_to_exitcode(outcome.status)
        return code if code >= 0 else 128 - code


@dataclass(slots=True)
class Streams:
    """What a process reads and writes; for a terminal, one output."""

    input: Input
    outputs: list[Output]
    owned: Descriptors


class ProcessTable:
    """Those that run, and the last hundred that have ended. For any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: dict[int, LiveProcess] = {}
        self._ended: deque[LiveProcess] = deque()

    def add(self, process: LiveProcess) -> None:
        with self._lock:
            self._running[process.pid] = process
        process.finished.add_done_callback(lambda _: self._note_end(process))

    def _note_end(self, process: LiveProcess) -> None:
        with self._lock:
            if self._running.get(process.pid) is process:
                del self._running[process.pid]
            self._ended.append(process)
            forgotten = self._ended.popleft() if len(self._ended) > _MOST_ENDED else None
        if forgotten is not None:
            forgotten.forget()

    def all(self) -> list[LiveProcess]:
        """The oldest first; those that have ended before those that run."""
        with self._lock:
            return [*self._ended, *self._running.values()]

    def find(self, pid: int) -> LiveProcess | None:
        """The one that runs, or else the last that had this pid."""
        with self._lock:
            if pid in self._running:
                return self._running[pid]
            return next((process for process in reversed(self._ended) if process.pid == pid), None)

    def forget_pipes(self) -> None:
        """The cage is gone, and with it everybody who could write; what was written is kept."""
        for process in self.all():
            process.forget()
