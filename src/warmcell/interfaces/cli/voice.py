"""How the command speaks: errors and hints on stderr, bytes through unchanged, a progress line on terminals."""

from __future__ import annotations

import os
import sys

from warmcell.core.lines import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from threading import Thread
    from types import TracebackType

PROGRESS_AFTER = 0.7
_CLEAR_LINE = "\r\x1b[2K"


def say_error(message: str, hint: str | None = None) -> None:
    """`error: ...` and, where there is a remedy, `hint: ...`."""
    _say("error", message)
    if hint:
        _say("hint", hint)


def say_warning(message: str, hint: str | None = None) -> None:
    _say("warning", message)
    if hint:
        _say("hint", hint)


def _say(kind: str, message: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{kind}: {one_line(message)}\n")
        sys.stderr.flush()


def write_bytes(stdout: bytes, stderr: bytes) -> None:
    """What the guest printed, byte for byte."""
    for stream, data in ((sys.stdout, stdout), (sys.stderr, stderr)):
        if data and stream is not None:
            stream.flush()
            stream.buffer.write(data)
            stream.buffer.flush()


def silence() -> None:
    """Our output cannot be written any more; what is left in buffers must not become a traceback at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(devnull, descriptor)
    os.close(devnull)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class Bar:
    """`with Bar(40, "judged") as bar:` shows how many of a known number are done, on a terminal only."""

    WIDTH = 30

    def __init__(self, total: int, what: str) -> None:
        self._total, self._what = total, what
        self._done = 0
        self._is_shown = _is_terminal()

    def __enter__(self) -> Bar:
        return self

    def advance(self) -> None:
        self._done += 1
        if self._is_shown:
            filled = self.WIDTH * self._done // max(1, self._total)
            bar = "#" * filled + "." * (self.WIDTH - filled)
            sys.stderr.write(f"{_CLEAR_LINE}[{bar}] {self._done}/{self._total} {self._what}")
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._is_shown and self._done:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()


class Progress:
    """`with Progress("compiling rust"):` shows a line when it takes long, on a terminal only, and takes it away."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._thread: Thread | None = None

    def __enter__(self) -> Progress:
        if _is_terminal():
            import threading

            self._done = threading.Event()
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Takes the line away; something else is shown from now on."""
        if self._thread is not None:
            self._done.set()
            self._thread.join()

    def _show(self) -> None:
        import time

        started = time.monotonic()
        wait, is_shown = PROGRESS_AFTER, False
        while not self._done.wait(wait):
            is_shown, wait = True, 0.5
            seconds = time.monotonic() - started
            sys.stderr.write(f"{_CLEAR_LINE}{self._what} ... {seconds:.0f} s")
            sys.stderr.flush()
        if is_shown:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
