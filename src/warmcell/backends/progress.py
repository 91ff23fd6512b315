"""A progress bar on stderr: rich's if it is installed, a plain one on a terminal, else a line now and then."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

_CLEAR_LINE = "\r\x1b[2K"
_WIDTH = 30
#: Seconds between two lines where there is no terminal.
_LINE_SECONDS = 5.0


class ProgressBar:
    """`with ProgressBar("judged", 40) as bar:` and then `bar.update(done)`, or `run_many(..., on_progress=bar.update)`.

    Not for two threads at a time.
    """

    def __init__(self, what: str, total: int | None = None, *, is_quiet: bool = False) -> None:
        self._what, self._total, self._is_quiet = what, total, is_quiet
        self._done, self._detail = 0, ""
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._rich: Any = None
        self._task: Any = None
        self._next_line = time.monotonic() + _LINE_SECONDS

    def __enter__(self) -> ProgressBar:
        if self._is_terminal and not self._is_quiet:
            self._rich = _rich_progress()
        return self

    def advance(self) -> None:
        self.update(self._done + 1)

    def update(self, done: int, total: int | None = None, detail: str = "") -> None:
        """`detail` is shown after the figures."""
        self._done, self._total, self._detail = done, total if total is not None else self._total, detail
        if self._is_quiet:
            return
        if self._rich is not None:
            self._update_rich()
        elif self._is_terminal:
            self._write(f"{_CLEAR_LINE}{self._text()}")
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_SECONDS
            self._write(f"{self._text(with_bar=False)}\n")

    def __exit__(self, *_: object) -> None:
        if self._task is not None:
            self._rich.stop()
        elif self._is_terminal and self._rich is None and self._done and not self._is_quiet:
            self._write(_CLEAR_LINE)

    def _update_rich(self) -> None:
        if self._task is None:
            self._task = self._rich.add_task(self._what, total=self._total, detail="")
            self._rich.start()
        self._rich.update(self._task, completed=self._done, total=self._total, detail=self._detail)

    def _text(self, with_bar: bool = True) -> str:
        if self._total is None:
            return f"{self._done} {self._what} {self._detail}".rstrip()
        filled = _WIDTH * self._done // max(1, self._total)
        bar = f"[{'#' * filled}{'.' * (_WIDTH - filled)}] " if with_bar else ""
        return f"{bar}{self._done}/{self._total} {self._what} {self._detail}".rstrip()

    @staticmethod
    def _write(text: str) -> None:
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()


def _rich_progress() -> Any:
    """None if rich is not installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        return None
    detail = TextColumn("{task.fields[detail]}", markup=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), detail)
    return Progress(*columns, console=Console(stderr=True), transient=True)
