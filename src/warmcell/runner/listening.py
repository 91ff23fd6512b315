"""Listening: output goes to somebody while the run goes on, and no faster than they take it."""

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
    """Called in the thread of the run. What it raises ends the run and reaches who asked for it; no `OSError`, which
    would be taken for one of the run's own.
    """

    def deliver(self, stream: Stream, data: bytes) -> None:
        """Takes it, whatever `behind` says: what the pipes held when the guest ended comes at once."""
        ...

    def behind(self) -> tuple[int, int] | None:
        """What to poll for, a descriptor and its events, before more is read; None: it keeps up."""
        ...

    def catch_up(self) -> None:
        """What `behind` named is ready."""
        ...


class HeardCapture(Capture):
    """A capture that passes on what it keeps: in the end exactly the bytes that the result has."""

    __slots__ = ("_listener", "_stream", "told")

    def __init__(self, cap: int, listener: Listener, stream: Stream) -> None:
        super().__init__(cap)
        self._listener = listener
        self._stream: Stream = stream
        #: How many bytes were passed on.
        self.told = 0

    def add(self, chunk: bytes) -> None:
        super().add(chunk)
        # At the cap a character may be incomplete for good, and is then not in the result: see `text_of`.
        tail = bytes(self.kept[-4:]) if len(self.kept) == self.cap else b""
        self._tell(len(self.kept) - len(tail) + len(cut_at_character(tail)))

    def finish(self) -> None:
        """No more will come."""
        if self.total <= self.cap:
            self._tell(len(self.kept))

    def _tell(self, end: int) -> None:
        if end > self.told:
            piece = bytes(memoryview(self.kept)[self.told : end])
            self.told = end
            self._listener.deliver(self._stream, piece)


class Pace:
    """Outputs are polled while the listener keeps up. While it does not, the guest waits in its own write."""

    def __init__(self, listener: Listener, outputs: Iterable[int], poll: select.poll) -> None:
        self._listener = listener
        self._open = set(outputs)
        self._poll = poll
        self._awaited = -1

    def ended(self, output: int) -> None:
        self._open.discard(output)

    def take(self, descriptor: int) -> bool:
        """Whether it was the one that the listener waited for."""
        if descriptor != self._awaited:
            return False
        self._listener.catch_up()
        return True

    def keep(self) -> None:
        """Call it after every round of poll."""
        behind = self._listener.behind()
        awaited = -1 if behind is None else behind[0]
        if awaited == self._awaited:
            return
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

    def end(self) -> None:
        """For a poll that others use after us: as it was."""
        if self._awaited >= 0:
            self._poll.unregister(self._awaited)
            self._awaited = -1
            for output in self._open:
                self._poll.register(output, select.POLLIN)


def tell_whole(listener: Listener | None, result: ExecResult | None) -> None:
    """For who listens to something that was not heard while it ran."""
    if listener is not None and result is not None:
        for stream, data in zip(STREAMS, (result.stdout_bytes, result.stderr_bytes), strict=True):
            if data:
                listener.deliver(stream, data)
