"""Delivers output while the run goes on, no faster than the listener takes it."""

from __future__ import annotations

import select
from collections.abc import Iterable

from warmcell.core.types import ExecResult
from warmcell.runner.outcome import cut_at_character
from warmcell.runner.streams import Capture

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, Protocol

    Stream = Literal["stdout", "stderr"]
else:
    Protocol = object  # for type checkers only

STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")


class Listener(Protocol):
    """Called in the thread of the run. An exception ends the run and is raised to its caller. It must not be an
    `OSError`, which would be taken for a failure of the run.
    """

    def deliver(self, stream: Stream, data: bytes) -> None:
        """Takes the data, even while `wait_target` is set: at the guest's end all remaining output is delivered."""
        ...

    def wait_target(self) -> tuple[int, int] | None:
        """The descriptor and events to wait for before more output is read. None if the listener keeps up."""
        ...

    def catch_up(self) -> None:
        """Called when the descriptor of `wait_target` is ready."""
        ...


class DeliveringCapture(Capture):
    """A capture that delivers what it keeps: in total exactly the bytes of the result."""

    __slots__ = ("_listener", "_stream", "delivered")

    def __init__(self, cap: int, listener: Listener, stream: Stream) -> None:
        super().__init__(cap)
        self._listener = listener
        self._stream: Stream = stream
        #: How many bytes were delivered.
        self.delivered = 0

    def add(self, chunk: bytes) -> None:
        super().add(chunk)
        # A character cut off at the cap is not in the result: see `text_of`.
        tail = bytes(self.kept[-4:]) if len(self.kept) == self.cap else b""
        self._deliver(len(self.kept) - len(tail) + len(cut_at_character(tail)))

    def finish(self) -> None:
        """Called at the end of the stream."""
        if not self.is_truncated:
            self._deliver(len(self.kept))

    def _deliver(self, end: int) -> None:
        if end > self.delivered:
            piece = bytes(memoryview(self.kept)[self.delivered : end])
            self.delivered = end
            self._listener.deliver(self._stream, piece)


class OutputThrottle:
    """Polls the outputs while the listener keeps up. While it does not, the guest blocks in write."""

    def __init__(self, listener: Listener, outputs: Iterable[int], poll: select.poll) -> None:
        self._listener = listener
        self._open = set(outputs)
        self._poll = poll
        self._awaited = -1

    def close_output(self, output: int) -> None:
        self._open.discard(output)

    def on_ready(self, descriptor: int) -> bool:
        """Lets the listener catch up if it waited for this descriptor. Returns whether it did."""
        if descriptor != self._awaited:
            return False
        self._listener.catch_up()
        return True

    def update(self) -> bool:
        """Starts or stops polling the outputs. Call it after each poll. Returns whether the listener caught up."""
        target = self._listener.wait_target()
        awaited = -1 if target is None else target[0]
        if awaited == self._awaited:
            return False
        if self._awaited >= 0:
            self._poll.unregister(self._awaited)
        for output in self._open:
            if target is None:
                self._poll.register(output, select.POLLIN)
            elif self._awaited < 0:
                self._poll.unregister(output)
        if target is not None:
            self._poll.register(*target)
        self._awaited = awaited
        return target is None

    def end(self) -> None:
        """Restores the poll object for later users."""
        if self._awaited >= 0:
            self._poll.unregister(self._awaited)
            self._awaited = -1
            for output in self._open:
                self._poll.register(output, select.POLLIN)


def deliver_result(listener: Listener | None, result: ExecResult | None) -> None:
    """Delivers the output of a run that had no listener while it ran."""
    if listener is not None and result is not None:
        for stream, data in zip(STREAMS, (result.stdout_bytes, result.stderr_bytes), strict=True):
            if data:
                listener.deliver(stream, data)
