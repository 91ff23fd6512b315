"""What the command writes: errors and hints on stderr, progress on terminals, and the guest's output while it runs.

Imported by every run, so it stays small.
"""

from __future__ import annotations

import os
import select
import sys
import time

from warmcell.core import slow_steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from threading import Thread
    from typing import TextIO

    from warmcell.core.output_events import StreamEvent
    from warmcell.core.types import ExecResult

PROGRESS_AFTER = 0.7
CLEAR_LINE = "\r\x1b[2K"
_COLORS = {"error": 31, "warning": 33, "note": 36, "hint": 36}
_is_quiet = False
_RETRY_SECONDS = 0.01


def set_quiet(is_quiet: bool) -> None:
    """Apply `--quiet`: print errors only, and no progress."""
    global _is_quiet
    _is_quiet = is_quiet


def is_quiet() -> bool:
    return _is_quiet


def say_error(message: str, hint: str | None = None) -> None:
    """Print `error: ...` and, if there is a remedy, `hint: ...`."""
    _say("error", message, hint)


def say_warning(message: str, hint: str | None = None) -> None:
    if not _is_quiet:
        _say("warning", message, hint)


def say_note(message: str) -> None:
    if not _is_quiet:
        _say("note", message, None)


def _say(kind: str, message: str, hint: str | None) -> None:
    if sys.stderr is not None:
        from warmcell.core.lines import one_line

        second = f"{_label('hint')} {one_line(hint)}\n" if hint else ""
        sys.stderr.write(f"{_label(kind)} {one_line(message)}\n{second}")
        sys.stderr.flush()


def _label(kind: str) -> str:
    """`error:`, in color on a terminal unless NO_COLOR is set (https://no-color.org)."""
    has_color = is_terminal() and not os.environ.get("NO_COLOR")
    return f"\x1b[1;{_COLORS[kind]}m{kind}:\x1b[0m" if has_color else f"{kind}:"


def write_bytes(stdout: bytes, stderr: bytes) -> None:
    """Write the guest's output, byte for byte."""
    for stream, data in ((sys.stdout, stdout), (sys.stderr, stderr)):
        if data and stream is not None:
            stream.flush()
            stream.buffer.write(data)
            stream.buffer.flush()


def silence() -> None:
    """Redirect output to /dev/null after a broken pipe, so that flushing at exit does not raise."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(devnull, descriptor)
    os.close(devnull)


def are_terminals(*streams: TextIO | None) -> bool:
    """Whether all of them are terminals. None: it was closed when this program started."""
    return all(stream is not None and stream.isatty() for stream in streams)


def is_terminal() -> bool:
    return are_terminals(sys.stderr) and os.environ.get("TERM") != "dumb"


def size_text(size: int) -> str:
    if size < 1000:
        return f"{size} B"
    value, unit = size / 1000, "kB"
    for larger in ("MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"


class Progress:
    """`with Progress("compiling rust"):` shows a line while something takes long, on a terminal only.

    A slow step that happens once on a machine is named, as a note if there is no terminal.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._thread: Thread | None = None
        self._stop_listening: Callable[[], None] | None = None

    def __enter__(self) -> Progress:
        if _is_quiet:
            return self
        self._stop_listening = slow_steps.listen(self._name_step)
        if is_terminal():
            import threading

            self._done = threading.Event()
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the line, before other output."""
        if self._stop_listening is not None:
            self._stop_listening()
        if self._thread is not None:
            self._done.set()
            self._thread.join()

    def _name_step(self, what: str) -> None:
        if self._thread is None:
            say_note(what)
        else:
            self._what = what

    def _show(self) -> None:
        from warmcell.core.lines import one_line

        started = time.monotonic()
        wait, is_shown = PROGRESS_AFTER, False
        while not self._done.wait(wait):
            is_shown, wait = True, 0.5
            seconds = time.monotonic() - started
            sys.stderr.write(f"{CLEAR_LINE}{one_line(self._what)} ... {seconds:.0f} s")
            sys.stderr.flush()
        if is_shown:
            sys.stderr.write(CLEAR_LINE)
            sys.stderr.flush()


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
        #: Whether the run had output; it was written here, so it need not be printed again.
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

    def wait_target(self) -> tuple[int, int] | None:
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
            try:  # a pipe that polls as writable takes PIPE_BUF bytes without blocking
                data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]
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
