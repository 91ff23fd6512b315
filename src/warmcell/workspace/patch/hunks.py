"""Pure module: puts hunks into text, with bounded effort."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from warmcell.workspace.errors import PatchRejected
from warmcell.workspace.patch.parse import Hunk

#: How many lines a whole patch may compare in search of where its hunks belong; a hostile one could need billions.
_MAX_COMPARISONS = 20_000_000


def split_lines(text: str) -> list[str]:
    """Lines with their ends. Only LF ends a line here; CR, form feeds and Unicode separators are content."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


class Effort:
    """What is left of the comparisons, for all files of a patch together."""

    def __init__(self) -> None:
        self._left = _MAX_COMPARISONS

    def spend(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise PatchRejected("finding the places of the hunks takes too long")


def apply_hunks(text: str, hunks: Sequence[Hunk], path: str, effort: Effort | None = None) -> str:
    """The patched text. Hunks may have moved, but every line of context must match exactly."""
    lines, done, shift = split_lines(text), 0, 0
    effort = effort or Effort()
    result: list[str] = []
    for hunk in hunks:
        expected = hunk.old_start + shift - (1 if hunk.old else 0)
        at = _place(lines, hunk, expected, done, effort)
        if at is None:
            raise PatchRejected(f"{path!r} does not have the lines that the hunk at line {hunk.old_start} expects")
        result += lines[done:at]
        result += hunk.new
        done, shift = at + len(hunk.old), at - (hunk.old_start - (1 if hunk.old else 0))
    result += lines[done:]
    return "".join(_with_line_ends(result))


def _place(lines: list[str], hunk: Hunk, expected: int, first: int, effort: Effort) -> int | None:
    """The place nearest to the expected one, not before the end of the last hunk, where all old lines stand."""
    old = list(hunk.old)
    last = len(lines) - len(old)
    if not old:
        return expected if first <= expected <= last else None
    for at in _outwards(expected, first, last):
        effort.spend(1)
        if lines[at] == old[0]:
            effort.spend(len(old))
            if lines[at : at + len(old)] == old:
                return at
    return None


def _outwards(middle: int, first: int, last: int) -> Iterator[int]:
    middle = min(max(middle, first), last)
    for distance in range(last - first + 1):
        for at in (middle + distance, middle - distance) if distance else (middle,):
            if first <= at <= last:
                yield at


def _with_line_ends(lines: list[str]) -> Iterator[str]:
    """Only the last line may lack its end; a hunk that says otherwise would glue two lines together."""
    for number, line in enumerate(lines, start=1):
        yield line if line.endswith("\n") or number == len(lines) else line + "\n"
