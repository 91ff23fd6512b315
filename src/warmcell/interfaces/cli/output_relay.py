"""Writes the guest's output while it runs, byte for byte. Imported by every run, so it stays small."""

from __future__ import annotations

import os
import select
import sys
import time

from warmcell.interfaces.cli.messages import write_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from warmcell.core.output_events import StreamEvent
    from warmcell.core.types import ExecResult

#: A pipe that polls as writable takes this much without blocking.
_PIECE = select.PIPE_BUF
_RETRY_SECONDS = 0.01


class OutputLost(Exception):
    """Our output cannot be written: a closed pipe or a full disk. Ends the run."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class PassThrough:
    """A `Listener` that never blocks the run: output that a slow reader has not taken is buffered here.

    `before_first` is called before the first write.
    """

    def __init__(self, before_first: Callable[[], None]) -> None:
        self._before_first = before_first
        self._waiting: list[tuple[int, memoryview]] = []
        #: Whether there was any output; all of it was then written here.
        self.has_output = False

    def deliver(self, stream: str, data: bytes) -> None:
        if not self.has_output:
            self._before_first()
            self.has_output = True
        descriptor = _descriptor(stream)
        try:
            if descriptor is None:  # not a file (a test's stream), so it cannot block
                write_bytes(*((data, b"") if stream == "stdout" else (b"", data)))
                return
        except OSError as error:
            raise OutputLost(error) from None
        self._waiting.append((descriptor, memoryview(data)))
        self.catch_up()

    def behind(self) -> tuple[int, int] | None:
        return (self._waiting[0][0], select.POLLOUT) if self._waiting else None

    def catch_up(self) -> None:
        """Write what can be written without blocking."""
        self._write(0)

    def finish(self) -> None:
        """Write the rest, blocking: the guest has ended."""
        self._write(None)

    def _write(self, patience: int | None) -> None:
        while self._waiting and _is_writable(self._waiting[0][0], patience):
            descriptor, data = self._waiting[0]
            try:
                data = data[os.write(descriptor, data[:_PIECE]) :]
            except BlockingIOError:  # a terminal that another program made non-blocking
                if patience is not None:
                    return
                time.sleep(_RETRY_SECONDS)
                continue
            except OSError as error:
                raise OutputLost(error) from None
            if data:
                self._waiting[0] = (descriptor, data)
            else:
                del self._waiting[0]


async def relay(events: AsyncGenerator[StreamEvent, None], output: PassThrough) -> ExecResult:
    """Write the run's output and return its result. Raises `OutputLost`, which ends the run."""
    from contextlib import aclosing

    from warmcell.core.errors import ExecutionFailed
    from warmcell.core.output_events import ResultEvent

    async with aclosing(events):
        async for event in events:
            if isinstance(event, ResultEvent):
                return event.result
            output.deliver(event.stream, event.data)
            output.finish()  # may block: the run is in another thread
    raise ExecutionFailed("the backend ended its stream without a result")


def _descriptor(name: str) -> int | None:
    stream = getattr(sys, name)
    try:
        stream.flush()
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return None


def _is_writable(descriptor: int, patience: int | None) -> bool:
    """Whether a write will not block. True also if it will fail."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(patience))
