"""One exchange with a session's worker: the worker, the callbacks, the state, and requests to interrupt it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, Protocol

from warmcell.core.errors import ExecutionTimeout, SandboxError
from warmcell.core.records import dataclass
from warmcell.core.types import Denial, ExecResult
from warmcell.lifetime.descriptors import Descriptors
from warmcell.lifetime.run import Run, RunCancelled
from warmcell.sessions.cell_events import Done
from warmcell.sessions.cell_record import CellRecord

#: How long a cell may go on after it was interrupted.
GRACE_SECONDS = 5.0
#: The same for a cancelled cell, whose caller was promised a quick end.
CANCEL_SECONDS = 0.6
#: How long an interrupted cell may go on that has no processor, or that the signal has not reached.
STARVED_SECONDS = 15.0
#: When its signal is repeated for the first time; each later time comes after twice as long.
REPEAT_SECONDS = 0.25
#: Characters that fit into a frame however JSON escapes them.
PIECE = 64 * 1024


class CellInterrupts:
    """An interrupt is for the running cell, or else for the next one if its caller already waits for it."""

    def __init__(self, owned: Descriptors) -> None:
        self._lock = threading.Lock()
        self._runs_cell = self._is_wanted = self._is_woken = self._is_over = False
        #: Cancelled by an interrupt: the question that the caller of the running cell is answering.
        self._asking: Run | None = None
        #: Readable when the exchange in progress should look.
        self.descriptor = owned.open(lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def abandon(self) -> None:
        """In a fork of the program."""
        self._lock = threading.Lock()
        self._runs_cell = self._is_wanted = False
        self._asking = None

    def request(self, is_awaited: bool) -> bool:
        """False if there is no cell to interrupt."""
        with self._lock:
            self._is_wanted = self._runs_cell or is_awaited
            if self._runs_cell:
                self.wake()
                self._cancel_question()
            return self._is_wanted

    @contextmanager
    def question(self, run: Run, *, is_interrupted: bool) -> Iterator[Run]:
        """While a callback answers a question of the cell: what ends it if it waits. Its time is not the cell's, so
        nothing else would. `is_interrupted`: an interrupt so far was for what the cell did before.
        """
        asking = Run()
        with run.on_cancel(asking.cancel):
            with self._lock:
                self._asking = asking
                if self._is_over or (self._is_wanted and not is_interrupted):
                    asking.cancel()
            try:
                yield asking
            finally:
                with self._lock:
                    self._asking = None

    def end_questions(self) -> None:
        """The worker has been ended: no answer is needed any more."""
        with self._lock:
            self._is_over = True
            self._cancel_question()

    def _cancel_question(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    def forget(self) -> None:
        """The cell that was awaited will not start."""
        with self._lock:
            self._is_wanted &= self._runs_cell

    def pass_on(self, successor: CellInterrupts) -> None:
        """The worker is replaced: a cell that waits, and was interrupted already, starts in the new one."""
        if self._is_wanted:
            successor.request(is_awaited=True)

    def begin(self, is_cell: bool) -> None:
        """An exchange begins: a cell, or another request, which is never interrupted."""
        with self._lock:
            self._runs_cell = is_cell
            if self._is_woken:  # by a wake-up for the previous exchange
                self._read()
            if is_cell and self._is_wanted:
                self.wake()

    def end(self) -> None:
        with self._lock:
            self._is_wanted &= not self._runs_cell
            self._runs_cell = False

    def wake(self) -> None:
        self._is_woken = True
        os.eventfd_write(self.descriptor, 1)

    def take(self) -> bool:
        """Whether the running cell should be interrupted, asked after a wake-up."""
        self._read()
        return self._runs_cell and self._is_wanted

    def _read(self) -> None:
        self._is_woken = False
        with suppress(BlockingIOError):  # the previous exchange read it while it was woken again
            os.eventfd_read(self.descriptor)


class Clock(Protocol):
    """Measures the time of a worker."""

    def remaining_time(self, timeout: float) -> float:
        """The part of a timeout, which began with the clock, that the worker could not use."""
        ...


class Worker(Protocol):
    """The process with a session's interpreter. Its methods may be called from any thread."""

    control: socket.socket
    stdout: int
    stderr: int
    #: The pipe for its image, if the session can be forked.
    image: int | None

    def interrupt(self, *, is_repeated: bool = False) -> Future[Any] | None:
        """SIGINT to its process group; repeated, to its own process. Done when sent; None if that is so already."""
        ...

    def kill(self) -> None:
        """Ends the worker and everything that it started. Does nothing if it has ended."""

    def reason(self) -> str:
        """Why the worker ended. Called after its control socket was closed."""
        ...

    def limit_error(self, result: ExecResult) -> SandboxError | None:
        """The error of the limit that ended it, called after `reason`; None if no limit did."""
        ...

    def end_if_over_memory(self, peak: int) -> bool:
        """Whether it is being ended for its memory. `peak`: its own report of its peak."""
        ...

    def denials_since(self, moment: float) -> list[Denial]:
        """The denials of its cage since `moment`, a `time.monotonic` value."""
        ...

    def start_clock(self) -> Clock:
        """Begins to measure whether it gets a processor."""
        ...

    def close(self) -> None:
        """Ends the worker and closes its descriptors. Called last."""


#: Called with the value and the run; cancelling the run must end a callback that waits.
Listener = Callable[[Any, Run], object]


@dataclass(frozen=True, slots=True)
class Listeners:
    """Called in the thread of the cell, one at a time. One that raises ends the cell."""

    on_stdout: Listener | None = None
    on_stderr: Listener | None = None
    on_display: Listener | None = None
    on_input: Listener | None = None


#: No callbacks.
NO_LISTENERS = Listeners()


class Exchange:
    """One exchange in progress: a cell, or another request."""

    #: Why it was interrupted, if it was: "timeout", "cancelled", "asked", or "callback".
    cause = ""
    is_killed = False
    failure: BaseException | None = None
    done: Done | None = None
    interrupted_at = inf
    #: When the signal that interrupts it is repeated.
    next_signal = inf
    #: Since the signal was repeated, which is when it is doubtful that the cell ends in time.
    clock: Clock | None = None
    _pause = REPEAT_SECONDS

    def __init__(self, number: int, timeout: float, listeners: Listeners, most_bytes: int) -> None:
        self.number, self.timeout, self.listeners = number, timeout, listeners
        self.record = CellRecord(most_bytes)
        self.began = time.monotonic()
        #: The next deadline: of the cell, of its end after an interrupt, or of the worker's end after a kill.
        self.deadline = self.began + timeout

    @property
    def duration(self) -> float:
        return time.monotonic() - self.began

    @property
    def grace(self) -> float:
        return CANCEL_SECONDS if self.cause == "cancelled" else GRACE_SECONDS

    @property
    def kill_reason(self) -> str:
        after = f"it timed out after {self.timeout:g} s, and " if self.cause == "timeout" else ""
        return f"{after}the interrupted cell kept running for {self.grace:g} s and was killed"

    def plan_signal(self) -> None:
        self.next_signal = time.monotonic() + self._pause
        self._pause *= 2

    def raise_end(self) -> None:
        """Raises what ended it early, unless the caller asked for that."""
        if self.failure is not None:
            raise self.failure
        if self.cause == "timeout":
            raise ExecutionTimeout(self.timeout, self.record.so_far(self.duration))
        if self.cause == "cancelled":
            raise RunCancelled


class InterruptSignal:
    """SIGINT to a worker. It is repeated until the cell ends: one that comes before the cell has begun, or just before
    a call that blocks, is lost.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        #: The last one, which may not have been sent yet.
        self._last: Future[Any] | None = None

    def send(self, cell: Exchange) -> None:
        with suppress(SandboxError):  # its cage has ended, which the socket will report
            self._last = self._worker.interrupt()
        cell.plan_signal()

    def repeat(self, cell: Exchange) -> None:
        if self._is_sent:
            with suppress(OSError):  # no descriptors left
                cell.clock = cell.clock or self._worker.start_clock()
            with suppress(SandboxError):
                self._last = self._worker.interrupt(is_repeated=True)
        cell.plan_signal()

    @property
    def _is_sent(self) -> bool:
        return self._last is None or self._last.done()

    def extend(self, cell: Exchange) -> bool:
        """Whether the cell gets more time to end, since it could not use its grace."""
        more, seconds = 0.0, cell.grace - REPEAT_SECONDS
        if time.monotonic() - cell.interrupted_at < STARVED_SECONDS:
            with suppress(OSError):  # no descriptors left
                if not self._is_sent:
                    more = REPEAT_SECONDS
                elif cell.clock is None:  # this thread had no processor meanwhile
                    cell.clock, more = self._worker.start_clock(), seconds
                else:
                    more = cell.clock.remaining_time(seconds)
        cell.deadline = min(time.monotonic() + more, cell.interrupted_at + STARVED_SECONDS)
        return more > 0

    def await_delivery(self) -> None:
        """The last exchange may have ended before the signal that was to interrupt it: it would interrupt this one."""
        if self._last is not None:
            wait([self._last], GRACE_SECONDS)
            self._last = None


def split_code(code: str) -> list[str]:
    return [code[start : start + PIECE] for start in range(0, len(code), PIECE)] or [code]
