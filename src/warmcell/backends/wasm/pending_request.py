"""A request that a worker is working on: waits for the answer, reads output, handles host calls, enforces limits."""

from __future__ import annotations

import time
from collections.abc import Callable

from warmcell.backends.wasm.channel import Frame, WorkerTimedOut
from warmcell.backends.wasm.worker_handle import WorkerHandle
from warmcell.core.records import dataclass
from warmcell.runner.listening import Listener, Pace

#: Most runs end within this time. Their output is then read once, after the exit report.
_FIRST_WAIT_MS = 2
_CHECK_SECONDS = 0.025


class WorkerOverMemory(Exception):
    """The worker grew past the request's memory limit. It is still running and must be killed."""


class WorkerOverCpu(Exception):
    """The worker used more processor time than the request allows. It is still running and must be killed."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What a request may use. `memory_bytes` limits how much the worker may grow."""

    seconds: float
    memory_bytes: int
    cpu_seconds: float | None = None


#: Handles a host call of the worker. It answers on the worker's channel, now or later.
HostCallHandler = Callable[[Frame], None]


class PendingRequest:
    """Used in one thread. `make_handler` is called at the first host call; without it there are no host calls."""

    def __init__(
        self,
        worker: WorkerHandle,
        limits: RequestLimits,
        make_handler: Callable[[PendingRequest], HostCallHandler] | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._worker = worker
        self._limits = limits
        self._make_handler = make_handler
        self._handler: HostCallHandler | None = None
        self._pace = None if listener is None else Pace(listener, worker.outputs, worker.full_poll)
        now = time.monotonic()
        self._deadline = now + limits.seconds
        self._next_check = now + _CHECK_SECONDS
        self._memory_before = 0
        self._cpu_before = 0.0
        #: Seconds spent on host calls that do not count as the guest's time.
        self.extra_seconds = 0.0

    def cpu_seconds(self) -> float:
        """Processor time since the request started, for a worker that can no longer report it."""
        return max(0.0, self._worker.cpu_seconds() - self._cpu_before)

    def extend(self, seconds: float) -> None:
        """Moves the deadline."""
        self._deadline += seconds
        self.extra_seconds += seconds

    def wait(self) -> Frame:
        """The worker's answer. Raises an exception above, `WorkerTimedOut` or `WorkerDied`."""
        # Read while the worker wakes up: this delays nothing, and misses nothing that the request allocates.
        self._memory_before = self._worker.anonymous_bytes()
        if self._limits.cpu_seconds is not None:
            self._cpu_before = self._worker.cpu_seconds()
        if self._worker.control_poll.poll(_FIRST_WAIT_MS):
            frame = self._receive()
            if frame is not None:
                return frame
        if self._limits.cpu_seconds is None:  # only reported, and in hundredths of a second
            self._cpu_before = self._worker.cpu_seconds()
        try:
            while (frame := self._poll()) is None:
                pass
            return frame
        finally:
            if self._pace is not None:
                self._pace.end()

    def _poll(self) -> Frame | None:
        now = time.monotonic()
        if now >= self._deadline:
            raise WorkerTimedOut
        if now >= self._next_check:
            self._check_usage(now)
        pause = min(self._deadline, self._next_check) - now
        frame = None
        for descriptor, _ in self._worker.full_poll.poll(max(0, pause) * 1000):
            if descriptor == self._worker.channel.fileno():
                frame = self._receive()
            elif self._pace is None:
                self._worker.pump(descriptor)
            elif not self._pace.take(descriptor) and not self._worker.pump(descriptor):
                self._pace.close_output(descriptor)
        if self._pace is not None:
            self._pace.keep()
        return frame

    def _receive(self) -> Frame | None:
        """The answer, if it arrived. Handles all host calls that were read: poll would not report them again."""
        frame = self._worker.channel.receive()
        while frame is not None and frame.message.get("op") == "call" and self._make_handler is not None:
            if self._handler is None:
                self._handler = self._make_handler(self)
            self._handler(frame)
            frame = self._worker.channel.next_received()
        return frame

    def _check_usage(self, now: float) -> None:
        self._next_check = now + _CHECK_SECONDS
        if self._worker.anonymous_bytes() - self._memory_before > self._limits.memory_bytes:
            raise WorkerOverMemory
        if self._limits.cpu_seconds is not None and self.cpu_seconds() > self._limits.cpu_seconds:
            raise WorkerOverCpu
