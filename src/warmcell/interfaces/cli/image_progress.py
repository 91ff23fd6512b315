"""Progress of imports and pulls: a bar on a terminal, one line per step elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from warmcell.core.lines import one_line
from warmcell.interfaces.cli.messages import CLEAR_LINE, is_quiet, is_terminal

if TYPE_CHECKING:
    from warmcell.images.progress import ImageProgress

_VERBS = {"copy": "copying", "pull": "pulling", "unpack": "unpacking"}
_EVERY_SECONDS = 0.1
_BAR = 24


class ProgressLine:
    """`with ProgressLine() as progress:` and `progress.show` as `on_progress`. Writes to stderr."""

    def __init__(self) -> None:
        self._is_terminal = is_terminal()
        self._next = 0.0
        self._step = ""

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            self._write(CLEAR_LINE)

    def show(self, progress: ImageProgress) -> None:
        step = f"{_VERBS[progress.step]} {_short(progress.what)}"
        if not self._is_terminal:
            if step != self._step:
                self._write(f"{step} ({size_text(progress.total)})\n")
        elif step != self._step or time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_SECONDS
            done = min(1.0, progress.done / max(progress.total, 1))
            bar = ("=" * int(done * _BAR)).ljust(_BAR)
            self._write(f"{CLEAR_LINE}{step} [{bar}] {size_text(progress.done)} of {size_text(progress.total)}")
        self._step = step

    def _write(self, text: str) -> None:
        if sys.stderr is not None and not is_quiet():
            sys.stderr.write(text)
            sys.stderr.flush()


def _short(what: str) -> str:
    """Twelve digits of a digest, or the end of a path."""
    return what[7:19] if what.startswith("sha256:") else one_line(what)[-40:]


def size_text(size: int) -> str:
    if size < 1000:
        return f"{size} B"
    value, unit = size / 1000, "kB"
    for larger in ("MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
