"""One request to a worker and all that happens until it answers: output, questions, deadline, memory, death."""

from __future__ import annotations

import time
from collections.abc import Callable

from warmcell.backends.wasm.frames import Frame, Overstayed
from warmcell.backends.wasm.worker import Worker
from warmcell.core.records import dataclass
from warmcell.runner.listening import Listener, Pace

#: Most runs are over by then; their output is read once, after the answer, instead of piece by piece.
_FIRST_WAIT_MS = 2
_WATCH_SECONDS = 0.025


class OverMemory(Exception):
    """The worker took more memory than the run was given. It is still running and must be killed."""


class OverCpu(Exception):
    """The worker used more processor time than the run was given. It is still running and must be killed."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request may take. `memory_bytes` is what the worker may grow by."""

    seconds: float
    memory_bytes: int
    cpu_seconds: float | None = None


#: Answers a question of the worker, on the worker's channel, now or later.
OnQuestion = Callable[[Frame], None]


class Conversation:
    """Runs in the calling thread. `answering` is asked once, at the first question, for what answers them all; it may
    call `give_time`. Without it there are none.
    """

    def __init__(
        self,
        worker: Worker,
        bounds: Bounds,
        answering: Callable[[Conversation], OnQuestion] | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._worker = worker
        self._bounds = bounds
        self._answering = answering
        self._on_question: OnQuestion | None = None
        self._pace = None if listener is None else Pace(listener, worker.outputs, worker.full_poll)
        now = time.monotonic()
        self._deadline = now + bounds.seconds
        self._next_watch = now + _WATCH_SECONDS
        self._memory_before = 0
        self._cpu_before = 0.0
        #: What went by while a question was answered that is not the guest's time.
        self.time_given = 0.0

    def spent_cpu(self) -> float:
        """Processor time since the request began, for a worker that can no longer say it itself."""
        return max(0.0, self._worker.cpu_seconds() - self._cpu_before)

    def give_time(self, seconds: float) -> None:
        self._deadline += seconds
        self.time_given += seconds

    def wait(self) -> Frame:
        """The worker's answer, or one of the exceptions above, or `Overstayed`, or `WorkerDied`."""
        # Now, while the worker is just waking up: it costs nobody time, and nothing that the request takes is missed.
        self._memory_before = self._worker.anonymous_bytes()
        if self._bounds.cpu_seconds is not None:
            self._cpu_before = self._worker.cpu_seconds()
        if self._worker.control_poll.poll(_FIRST_WAIT_MS):
            frame = self._receive()
            if frame is not None:
                return frame
        if self._bounds.cpu_seconds is None:  # to be told only, in hundredths of a second
            self._cpu_before = self._worker.cpu_seconds()
        try:
            while (frame := self._step()) is None:
                pass
            return frame
        finally:
            if self._pace is not None:
                self._pace.end()

    def _step(self) -> Frame | None:
        now = time.monotonic()
        if now >= self._deadline:
            raise Overstayed
        if now >= self._next_watch:
            self._watch(now)
        pause = min(self._deadline, self._next_watch) - now
        frame = None
        for descriptor, _ in self._worker.full_poll.poll(max(0, pause) * 1000):
            if descriptor == self._worker.channel.fileno():
                frame = self._receive()
            elif self._pace is None:
                self._worker.pump(descriptor)
            elif not self._pace.take(descriptor) and not self._worker.pump(descriptor):
                self._pace.ended(descriptor)
        if self._pace is not None:
            self._pace.keep()
        return frame

    def _receive(self) -> Frame | None:
        """The answer, if it is there. One read may have brought several frames, of which poll would not tell again."""
        frame = self._worker.channel.receive()
        while frame is not None and frame.message and frame.message.get("op") == "call" and self._answering is not None:
            if self._on_question is None:
                self._on_question = self._answering(self)
            self._on_question(frame)
            frame = self._worker.channel.next_received()
        return frame

    def _watch(self, now: float) -> None:
        self._next_watch = now + _WATCH_SECONDS
        if self._worker.anonymous_bytes() - self._memory_before > self._bounds.memory_bytes:
            raise OverMemory
        if self._bounds.cpu_seconds is not None and self.spent_cpu() > self._bounds.cpu_seconds:
            raise OverCpu
