"""What the guest writes goes out while it runs, byte for byte. Imported by every run, so it stays small."""

from __future__ import annotations

import os
import select
import sys
import time

from warmcell.interfaces.cli.voice import write_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from warmcell.core.output_events import StreamEvent
    from warmcell.core.types import ExecResult

#: What a pipe that polls as writable takes without blocking.
_PIECE = select.PIPE_BUF
_RETRY_SECONDS = 0.01


class OutputLost(Exception):
    """Our own output cannot be written: whoever read it is gone, or a disk is full. Ends the run."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class PassThrough:
    """A `Listener` that never blocks the run, which has a clock to keep: what a slow reader has not taken waits here.

    `before_first` is called before anything is written.
    """

    def __init__(self, before_first: Callable[[], None]) -> None:
        self._before_first = before_first
        self._waiting: list[tuple[int, memoryview]] = []
        #: Whether there was any output; then all of it came through here.
        self.has_heard = False

    def deliver(self, stream: str, data: bytes) -> None:
        if not self.has_heard:
            self._before_first()
            self.has_heard = True
        descriptor = _descriptor(stream)
        try:
            if descriptor is None:  # no file behind it, so nobody who could be slow
                write_bytes(*((data, b"") if stream == "stdout" else (b"", data)))
                return
        except OSError as error:
            raise OutputLost(error) from None
        self._waiting.append((descriptor, memoryview(data)))
        self.catch_up()

    def behind(self) -> tuple[int, int] | None:
        return (self._waiting[0][0], select.POLLOUT) if self._waiting else None

    def catch_up(self) -> None:
        """Writes as much as is taken at once."""
        self._write(0)

    def finish(self) -> None:
        """Writes the rest, however long that takes: the guest has ended."""
        self._write(None)

    def _write(self, patience: int | None) -> None:
        while self._waiting and _is_writable(self._waiting[0][0], patience):
            descriptor, data = self._waiting[0]
            try:
                data = data[os.write(descriptor, data[:_PIECE]) :]
            except BlockingIOError:  # a terminal that another program set to non-blocking may say so after all
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


async def passed_on(events: AsyncGenerator[StreamEvent, None], output: PassThrough) -> ExecResult:
    """The result of a run whose output has gone out. Who cannot be written to ends it."""
    from contextlib import aclosing

    from warmcell.core.errors import ExecutionFailed
    from warmcell.core.output_events import ResultEvent

    async with aclosing(events):
        async for event in events:
            if isinstance(event, ResultEvent):
                return event.result
            output.deliver(event.stream, event.data)
            output.finish()  # the run has a thread of its own, and its clock goes on
    raise ExecutionFailed("the backend ended its stream without a result")


def _descriptor(name: str) -> int | None:
    stream = getattr(sys, name)
    try:
        stream.flush()
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return None


def _is_writable(descriptor: int, patience: int | None) -> bool:
    """Also where writing will fail, which is then told."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(patience))
