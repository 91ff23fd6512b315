"""The processes of one live cage on the host's side: running and ended ones, and their output."""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from warmcell.core.errors import SandboxError
from warmcell.core.output_events import OutputEvent
from warmcell.core.records import dataclass
from warmcell.core.types import Denial, Enforced, ExecResult, Usage
from warmcell.lifetime.descriptors import Descriptors
from warmcell.lifetime.ownership import Lock
from warmcell.runner.outcome import cut_at_character
from warmcell.sessions.loop import Loop
from warmcell.sessions.streams import Beginning, Follower, Input, Output, Ring

if TYPE_CHECKING:
    import asyncio

_MOST_ENDED = 100
#: How much of its command an ended process keeps: a guest's may have megabytes.
_MOST_COMMAND = 4096
#: How much output all ended processes keep together.
_MOST_KEPT_BYTES = 16 << 20
#: How long a program may go on after the agent was asked to kill it.
KILL_SECONDS = 5.0
#: The wait status of a program that was killed.
_KILLED = 9


class Program(Protocol):
    """A program that a live cage started."""

    pid: int
    failure: int
    #: Denials while it ran.
    denials: list[Denial]

    #: Its exit, with `status`, `cpu_time` and `peak_memory`; or the error that ended its cage.
    ended: Future[Any]
    #: Whether it has exited, but the last output of its terminal was not read; called in the loop at that moment.
    is_ending: bool
    on_ending: Callable[[], object]

    @property
    def enforcement(self) -> Enforced: ...
    def why_ended(self, result: ExecResult) -> SandboxError:
        """The error that ended its cage, with the output of the program until then."""
        ...

    async def signal(self, number: int) -> None: ...
    async def kill(self) -> None: ...
    def kill_soon(self) -> Future[Any]:
        """`kill` without waiting for the answer."""
        ...

    def end_cage(self, reason: str) -> None: ...
    async def resize(self, columns: int, rows: int) -> None: ...


@dataclass(slots=True)
class Outcome:
    """The end of a live process: its wait status, or the error that ended it."""

    status: int | None
    cpu_time: float = 0.0
    peak_memory: int = 0
    error: SandboxError | None = None


def call_once(act: Callable[[], object]) -> Callable[[object], None]:
    """A callback for a future that keeps nothing alive after its call. The future itself keeps its callbacks."""
    waiting = [act]

    def call(_: object) -> None:
        waiting.pop()()

    return call


class LiveProcess:
    """One process. `finished` is set when it has ended and its output was read.

    Methods run in the loop of the cage unless they say otherwise.
    """

    def __init__(self, loop: Loop, program: Program, command: str, cwd: str, streams: Streams) -> None:
        self._loop, self.program = loop, program
        self.pid, self.command, self.cwd = program.pid, command, cwd
        self.outputs, self.input = streams.outputs, streams.input
        self._owned = streams.owned
        self.began = time.monotonic()
        self.duration = 0.0
        #: The timeout at which we ended it, if we did.
        self.timed_out: float | None = None
        self.outcome: Outcome | None = None
        self.finished: Future[Outcome] = Future()
        self.finished.set_running_or_notify_cancel()
        #: `finished` for the event loop of those that wait: it keeps a callback for each such future until it is done.
        self.awaited: asyncio.Future[Outcome] | None = None
        self._followers: list[Follower] = []
        self._is_listening = False

    def begin(self, timeout: float | None, *, is_followed: bool = False) -> None:
        """Called once by the thread that made it; from then on the loop handles it.

        With `is_followed` a follower will come: until then the output stays in the pipes, so that none is dropped.
        """

        def begin() -> None:
            if not is_followed:
                self._listen_again()
            if timeout is not None:
                self._loop.call_later(timeout, self._unless_freed(lambda process: process._run_out(timeout)))
            self.program.on_ending = self._unless_freed(LiveProcess._read_on)
            if self.program.is_ending:
                self._read_on()
            self.program.ended.add_done_callback(call_once(self._end))

        if not self._loop.call(begin):
            self._end()

    def _unless_freed(self, act: Callable[[LiveProcess], None]) -> Callable[[], None]:
        """For timers, which stay in the loop after the process has ended: its output is not kept for them."""
        reference = weakref.ref(self)

        def call() -> None:
            if (process := reference()) is not None:
                act(process)

        return call

    @property
    def is_running(self) -> bool:
        return self.outcome is None

    def follow(self, on_ready: Callable[[], None]) -> Follower:
        """From any thread: follows the output, first what is kept, then new output, until the process ends."""
        follower = Follower(on_ready, lambda: self._loop.call(self._listen_again))

        def begin() -> None:
            for output in self.outputs:
                kept = output.ring.content
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
            begin()  # the loop is over, so no other thread uses it
        return follower

    def unfollow(self, follower: Follower) -> None:
        """From any thread: drops a follower and its data."""
        if follower.was_let_go:  # the process has ended: no need to wake the loop
            return

        def leave() -> None:
            self._let_go(follower)
            self._listen_again()

        self._loop.call(leave)

    async def signal(self, number: int) -> None:
        """From any event loop."""
        await self.program.signal(number)
        if number == _KILLED:
            self._loop.call(self._take_last_output)

    async def kill(self) -> None:
        """From any event loop: kills it and everything that it started."""
        await self.program.kill()
        self._loop.call(self._take_last_output)

    def kill_soon(self) -> None:
        """From any thread: `kill` without waiting. The cage is ended if its agent does not end the program in time."""
        # After the answer it prints no more: before, it would fill the room for its last output.
        self.program.kill_soon().add_done_callback(call_once(partial(self._loop.call, self._take_last_output)))
        if self.is_running:
            end_cage = self._unless_freed(LiveProcess._end_cage_if_running)
            self._loop.call(lambda: self._loop.call_later(KILL_SECONDS, end_cage))

    def _take_last_output(self) -> None:
        for output in self.outputs:
            output.take_last()

    def _read_on(self) -> None:
        """Read on after its exit: followers that are full do not delay the report of the exit."""
        for output in self.outputs:
            output.take_last(is_listening=self._is_listening)

    def forget(self) -> None:
        """Closes its pipes, even if another process still writes to them."""
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
            self.kill_soon()

    def _end_cage_if_running(self) -> None:
        if self.outcome is None:
            self.program.end_cage(f"a killed program kept running for {KILL_SECONDS:g} s")

    def _end(self) -> None:
        """Reads the rest of its output and completes the process."""
        self.duration = time.monotonic() - self.began
        for output in self.outputs:
            output.take_all()
        self.input.close()
        error = self.program.ended.exception()
        if error is None:
            ending = self.program.ended.result()
            self.outcome = Outcome(ending.status, ending.cpu_time, ending.peak_memory)
            if ending.status != _KILLED:  # it exited by itself, before it was killed: only the host was late
                self.timed_out = None
        else:
            assert isinstance(error, SandboxError)
            self.outcome = Outcome(None, error=error)
            self.forget()  # no writer is left after the end of the cage
        self.finished.set_result(self.outcome)  # before the followers end, which may ask for the exit code
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
    """The streams of a process; a terminal has one output."""

    input: Input
    outputs: list[Output]
    owned: Descriptors


class ProcessTable:
    """The running processes and the last hundred that ended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: dict[int, LiveProcess] = {}
        self._ended: deque[LiveProcess] = deque()

    def add(self, process: LiveProcess) -> None:
        with self._lock:
            self._running[process.pid] = process
        process.finished.add_done_callback(call_once(partial(self._note_end, process)))

    def _note_end(self, process: LiveProcess) -> None:
        with self._lock:
            if self._running.get(process.pid) is process:
                del self._running[process.pid]
            process.command = process.command[:_MOST_COMMAND]
            for output in process.outputs:  # what it started may still write there
                output.note_reads(self._limit_output)
            self._ended.append(process)
            forgotten = self._ended.popleft() if len(self._ended) > _MOST_ENDED else None
            self._drop_oldest_output()
        if forgotten is not None:
            forgotten.forget()

    def _limit_output(self) -> None:
        with self._lock:
            self._drop_oldest_output()

    def _drop_oldest_output(self) -> None:
        """Bounds the output that ended processes keep together; the latest keeps all of its own."""
        total = 0
        for process in reversed(self._ended):
            total += sum(output.ring.size for output in process.outputs)
            if total > _MOST_KEPT_BYTES and process is not self._ended[-1]:
                for output in process.outputs:
                    output.ring.drop()

    def all(self) -> list[LiveProcess]:
        """Ended processes, then running ones, each oldest first."""
        with self._lock:
            return [*self._ended, *self._running.values()]

    def find(self, pid: int) -> LiveProcess | None:
        """The running process with this pid, or the last one that had it."""
        with self._lock:
            if pid in self._running:
                return self._running[pid]
            return next((process for process in reversed(self._ended) if process.pid == pid), None)

    def clear(self) -> None:
        """Frees what nothing else holds, after the end of the cage."""
        with self._lock:
            self._running.clear()
            self._ended.clear()

    def forget_pipes(self) -> None:
        """Closes all pipes after the end of the cage. Output that was read is kept."""
        for process in self.all():
            process.forget()


def result_of(process: LiveProcess) -> ExecResult:
    """The result of a process that ended; one that ended with its cage counts as killed."""
    outcome = process.outcome or Outcome(None)
    status = _KILLED if outcome.status is None else outcome.status
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    rings = {output.name: output.ring for output in process.outputs}
    stdout, stderr = rings["stdout"], rings.get("stderr", Ring(1))
    return ExecResult(
        stdout=text_of(stdout),
        stderr=text_of(stderr),
        exit_code=128 + number if number is not None else os.WEXITSTATUS(status),
        signal=number,
        duration=process.duration,
        stdout_bytes=stdout.content,
        stderr_bytes=stderr.content,
        stdout_truncated=stdout.is_truncated,
        stderr_truncated=stderr.is_truncated,
        usage=Usage(outcome.cpu_time, process.duration, outcome.peak_memory),
        enforced=process.program.enforcement,
        denials=process.program.denials,
    )


def text_of(ring: Ring) -> str:
    """The guest's output as text. Truncated output starts and ends at a character boundary."""
    kept = ring.content
    if ring.is_truncated and isinstance(ring, Beginning):
        kept = cut_at_character(kept)
    elif ring.is_truncated:
        rest = 0
        while rest < min(3, len(kept)) and kept[rest] & 0xC0 == 0x80:
            rest += 1
        kept = kept[rest:]
    return kept.decode("utf-8", "replace")
