"""One request to a worker and all that happens until it answers: output, questions, deadline, memory, death."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from warmcell.backends.wasm.frames import Frame, Overstayed, ProtocolViolation, WorkerDied
from warmcell.backends.wasm.worker import Worker
from warmcell.core.errors import BackendUnavailable

#: Most runs are over by then; their output is read once, after the answer, instead of piece by piece.
_FIRST_WAIT_MS = 2
_WATCH_SECONDS = 0.025
_START_SECONDS = 30.0
_START_MEMORY = 1 << 30
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_STATUS_BYTES = 4096


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
    """Runs in the calling thread. `extend` may be called from `on_question`."""

    def __init__(self, worker: Worker, bounds: Bounds, on_question: OnQuestion | None = None) -> None:
        self._worker = worker
        self._bounds = bounds
        self._on_question = on_question
        self._deadline = time.monotonic() + bounds.seconds
        self._next_watch = time.monotonic() + _WATCH_SECONDS
        self._memory_before = 0
        self._cpu_before = 0.0

    def spent_cpu(self) -> float:
        """Processor time since the request began, for a worker that can no longer say it itself."""
        return max(0.0, (cpu_seconds(self._worker.pid) or 0.0) - self._cpu_before)

    def extend(self, seconds: float) -> None:
        self._deadline += seconds

    def wait(self) -> Frame:
        """The worker's answer, or one of the exceptions above, or `Overstayed`, or `WorkerDied`."""
        # Now, while the worker is just waking up: it costs nobody time, and nothing that the request takes is missed.
        self._memory_before = anonymous_bytes(self._worker.pid) or 0
        self._cpu_before = cpu_seconds(self._worker.pid) or 0.0
        if self._worker.control_poll.poll(_FIRST_WAIT_MS):
            frame = self._receive()
            if frame is not None:
                return frame
        while True:
            frame = self._step()
            if frame is not None:
                return frame

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
            else:
                self._worker.pump(descriptor)
        return frame

    def _receive(self) -> Frame | None:
        frame = self._worker.channel.receive()
        if frame is None or frame.message.get("op") != "call" or self._on_question is None:
            return frame
        self._on_question(frame)
        return None

    def _watch(self, now: float) -> None:
        self._next_watch = now + _WATCH_SECONDS
        memory = anonymous_bytes(self._worker.pid)
        if memory is not None and memory - self._memory_before > self._bounds.memory_bytes:
            raise OverMemory
        if self._bounds.cpu_seconds is not None and self.spent_cpu() > self._bounds.cpu_seconds:
            raise OverCpu


def await_ready(worker: Worker) -> None:
    """Returns when the worker can take requests; a new worker needs a few hundredths of a second."""
    if worker.is_ready:
        return
    try:
        frame = Conversation(worker, Bounds(_START_SECONDS, _START_MEMORY)).wait()
    except (WorkerDied, Overstayed, ProtocolViolation) as error:
        detail = worker.log() or str(error)
        worker.dispose()
        raise BackendUnavailable(f"a WASM worker did not start: {detail}") from error
    worker.is_ready = frame.message.get("op") == "ready"


def anonymous_bytes(pid: int) -> int | None:
    """Memory that is the worker's alone: compiled code and libraries are mapped files. None where there is no /proc."""
    try:
        _, resident, shared, *_ = _read_status(f"/proc/{pid}/statm").split()
    except (OSError, ValueError):
        return None
    return (int(resident) - int(shared)) * _PAGE_BYTES


def cpu_seconds(pid: int) -> float | None:
    try:
        after_name = _read_status(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / _TICKS
    except (OSError, ValueError, IndexError):
        return None


def _read_status(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _STATUS_BYTES)
    finally:
        os.close(descriptor)
