"""Progress of builds: one line for each event, numbered by step, as BuildKit writes them without a terminal."""

from __future__ import annotations

import codecs
import sys
from typing import TYPE_CHECKING

from warmcell.core.lines import one_line
from warmcell.interfaces.cli.messages import is_quiet

if TYPE_CHECKING:
    from warmcell.images.build.progress import BuildProgress

_LONGEST_LINE = 4000


class BuildLines:
    """`with BuildLines() as lines:` and `lines.show` as `on_progress`. Writes to stderr."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._number = 0
        self._seconds = 0.0

    def __enter__(self) -> BuildLines:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()

    def show(self, progress: BuildProgress) -> None:
        self._number = progress.number
        if progress.state == "output":
            self._seconds = progress.seconds
            self._show_output(self._decoder.decode(progress.data))
            return
        self._flush()
        self._write(_describe(progress))

    def _show_output(self, text: str) -> None:
        """Whole lines; a step's output is not trusted, so control characters are escaped."""
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], ""
        for line in lines:
            self._write(f"{self._seconds:.3f} {one_line(line.rstrip())}")

    def _flush(self) -> None:
        if self._rest:
            self._show_output("\n")

    def _write(self, text: str) -> None:
        if sys.stderr is not None and not is_quiet():
            sys.stderr.write(f"#{self._number} {text}\n")
            sys.stderr.flush()


def _describe(progress: BuildProgress) -> str:
    match progress.state:
        case "started":
            stage = f"{progress.stage} " if progress.stage else ""
            return f"[{stage}{progress.number}/{progress.total}] {one_line(progress.text)}"
        case "cached":
            return "CACHED"
        case "failed":
            return f"ERROR after {progress.seconds:.1f}s"
        case _:
            return f"DONE {progress.seconds:.1f}s"
