"""Listening: output is delivered while the run goes on, no faster than the listener takes it."""

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
    Protocol = object  # type checkers alone look at these

STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")


class Listener(Protocol):
    """Called in the thread of the run. An exception ends the run and is raised to its caller. It must not be an
    `OSError`, which would be mistaken for one of the run's own.
    """

    def deliver(self, stream: Stream, data: bytes) -> None:
        """Takes the data, whatever `behind` says: when the guest ends, all that the pipes hold is delivered at once."""
        ...

    def behind(self) -> tuple[int, int] | None:
        """A descriptor and events to poll for before more is read. None if it keeps up."""
        ...

    def catch_up(self) -> None:
        """Called when the descriptor of `behind` is ready."""
        ...


class DeliveringCapture(Capture):
    """A capture that delivers what it keeps: in the end exactly the bytes of the result."""

    __slots__ = ("_listener", "_stream", "delivered")

    def __init__(self, cap: int, listener: Listener, stream: Stream) -> None:
        super().__init__(cap)
        self._listener = listener
        self._stream: Stream = stream
        #: How many bytes were delivered.
        self.delivered = 0

    def add(self, chunk: bytes) -> None:
        super().add(chunk)
        # At the cap a character may stay incomplete, and is then not in the result: see `text_of`.
        tail = bytes(self.kept[-4:]) if len(self.kept) == self.cap else b""
        self._deliver(len(self.kept) - len(tail) + len(cut_at_character(tail)))

    def finish(self) -> None:
        """Called at the end of the stream."""
        if self.total <= self.cap:
            self._deliver(len(self.kept))

    def _deliver(self, end: int) -> None:
        if end > self.delivered:
            piece = bytes(memoryview(self.kept)[self.delivered : end])
            self.delivered = end
            self._listener.deliver(self._stream, piece)


class Pace:
    """Outputs are polled while the listener keeps up. While it does not, the guest blocks in write."""

    def __init__(self, listener: Listener, outputs: Iterable[int], poll: select.poll) -> None:
        self._listener = listener
        self._open = set(outputs)
        self._poll = poll
        self._awaited = -1

    def close_output(self, output: int) -> None:
        self._open.discard(output)

    def take(self, descriptor: int) -> bool:
        """Whether the listener waited for this descriptor."""
        if descriptor != self._awaited:
            return False
        self._listener.catch_up()
        return True

    def keep(self) -> bool:
        """Call it after every round of poll. Returns whether the listener has just caught up."""
        behind = self._listener.behind()
        awaited = -1 if behind is None else behind[0]
        if awaited == self._awaited:
            return False
        if self._awaited >= 0:
            self._poll.unregister(self._awaited)
        for output in self._open:
            if behind is None:
                self._poll.register(output, select.POLLIN)
            elif self._awaited < 0:
                self._poll.unregister(output)
        if behind is not None:
            self._poll.register(*behind)
        self._awaited = awaited
        return behind is None

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
