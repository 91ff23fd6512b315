"""A parsed patch, independent of its format, and its hunks applied with a bounded number of comparisons. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from warmcell.core.errors import PathTraversal
from warmcell.workspace.errors import PatchRejected
from warmcell.workspace.names import Parts, display_path, split_relative


@dataclass(frozen=True, slots=True)
class Hunk:
    """Context (" "), removed ("-") and added ("+") lines with their newlines. `title` is the header as written.

    Its place: near line `start` if set; after the lines `anchors`; or at the end of the file.
    """

    title: str
    lines: tuple[tuple[str, str], ...]
    start: int | None = None
    anchors: tuple[str, ...] = ()
    is_at_end: bool = False

    @property
    def old(self) -> list[str]:
        return [content for sign, content in self.lines if sign != "+"]


@dataclass(slots=True)
class FilePatch:
    """The patch of one file. `old` is None for a new file, `new` for a deleted one; they differ for a move or copy.

    `is_whole`: a deletion without the file's content.
    """

    old: Parts | None = None
    new: Parts | None = None
    is_copy: bool = False
    is_whole: bool = False
    executable: bool | None = None
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def target(self) -> Parts:
        return self.new or self.old or ()


def split_lines(text: str) -> list[str]:
    """Split into lines with their newlines. Only LF ends a line; CR, form feeds and Unicode separators are content."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def parse_file_name(text: str) -> Parts:
    """Parse a file name of a patch, which must be beneath the workspace."""
    try:
        parts = split_relative(text)
    except PathTraversal as error:
        raise PatchRejected(f"bad file name: {error.message}") from None
    if not parts:
        raise PatchRejected("bad file name: the workspace itself")
    return parts


#: Line comparisons for a whole patch. A hostile one could need billions.
_MAX_COMPARISONS = 5_000_000
#: Reported misfits. Each costs a search through the whole file.
MAX_MISFITS = 100


class ComparisonBudget:
    """The remaining comparisons, shared by all files of a patch."""

    def __init__(self) -> None:
        self._left = _MAX_COMPARISONS

    def spend(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise PatchRejected("locating the hunks takes too long")


class _Unplaced(Exception):
    """A hunk does not match the file."""


def apply_hunks(
    text: str, hunks: Sequence[Hunk], budget: ComparisonBudget | None = None
) -> tuple[str, list[tuple[int, str]]]:
    """The patched text, and the number and reason of each hunk that does not match.

    Hunks are in file order and may have moved. Lines match exactly or without trailing blanks; context lines are kept
    as the file has them.
    """
    file = _File(split_lines(text), budget or ComparisonBudget())
    misfits = []
    for number, hunk in enumerate(hunks, start=1):
        try:
            file.put(hunk)
        except _Unplaced as error:
            misfits.append((number, str(error)))
        if len(misfits) >= MAX_MISFITS:
            break
    return file.text(), misfits


class _File:
    """A file being patched: the result so far, and the remaining old lines."""

    def __init__(self, lines: list[str], budget: ComparisonBudget) -> None:
        budget.spend(len(lines))
        self._lines = lines
        self._bare = [line.rstrip() for line in lines]
        self._budget = budget
        self._done, self._shift = 0, 0
        self._result: list[str] = []

    def put(self, hunk: Hunk) -> None:
        old = hunk.old
        first = self._after_anchors(hunk.anchors)
        at = self._place_between(hunk, first) if not old else self._place_of(hunk, old, first)
        found = self._lines[at : at + len(old)]
        self._result += self._lines[self._done : at]
        self._result += _merge_lines(hunk, found, _has_lost_returns(old, found))
        self._done = at + len(old)
        if hunk.start is not None:
            self._shift = at - (hunk.start - (1 if old else 0))

    def text(self) -> str:
        """Add missing newlines except on the last line; otherwise a hunk could join two lines."""
        lines = self._result + self._lines[self._done :]
        ended = [line if line.endswith("\n") else line + "\n" for line in lines[:-1]]
        return "".join(ended + lines[-1:])

    def _after_anchors(self, anchors: Sequence[str]) -> int:
        at = self._done
        for anchor in anchors:
            self._budget.spend(len(self._bare) - at)
            found = next((n for n in range(at, len(self._bare)) if self._bare[n].strip() == anchor), None)
            if found is None:
                raise _Unplaced(f"the '@@' line {display_path(anchor)!r} was not found{self._since()}")
            at = found + 1
        return at

    def _place_between(self, hunk: Hunk, first: int) -> int:
        """The place of a hunk that only adds lines: by line number, after the anchors, or at the end."""
        if hunk.start is None:
            return first if hunk.anchors and not hunk.is_at_end else len(self._lines)
        at = hunk.start + self._shift if self._lines else 0
        if not first <= at <= len(self._lines):
            raise _Unplaced(f"it adds lines after line {hunk.start}, but the file has {len(self._lines)} lines")
        return at

    def _place_of(self, hunk: Hunk, old: list[str], first: int) -> int:
        """The position where all old lines match, exactly or else without trailing blanks."""
        bare = [line.rstrip() for line in old]
        for lines, wanted in ((self._lines, old), (self._bare, bare)):
            for at in self._candidates(hunk, first, len(self._lines) - len(old)):
                self._budget.spend(1)
                if lines[at] == wanted[0]:
                    self._budget.spend(len(wanted))
                    if lines[at : at + len(wanted)] == wanted:
                        return at
        raise _Unplaced(self._reason(bare, first))

    def _candidates(self, hunk: Hunk, first: int, last: int) -> Iterator[int]:
        """Nearest to the hunk's line number first; without one, in file order."""
        if hunk.start is not None:
            return _outwards(hunk.start - 1 + self._shift, first, last)
        return _outwards(last if hunk.is_at_end else first, first, last)

    def _reason(self, wanted: list[str], first: int) -> str:
        """Describe the longest partial match and the first line that differs."""
        most, place = 0, first
        for at in range(first, len(self._bare)):
            length = self._count_matching_lines(at, wanted)
            if length > most:
                most, place = length, at
        if not most:
            return f"the line {display_path(wanted[0])!r} was not found{self._since()}"
        end = place + most
        found = f"line {end + 1} is {display_path(self._bare[end])!r}" if end < len(self._bare) else "the file ends"
        return f"it matches from line {place + 1}, but then {found}, not {display_path(wanted[most])!r}"

    def _count_matching_lines(self, at: int, wanted: list[str]) -> int:
        length = 0
        while length < len(wanted) and at + length < len(self._bare) and self._bare[at + length] == wanted[length]:
            length += 1
        self._budget.spend(length + 1)
        return length

    def _since(self) -> str:
        return f" after line {self._done}, where the previous hunk ends" if self._done else ""


def _outwards(middle: int, first: int, last: int) -> Iterator[int]:
    middle = min(max(middle, first), last)
    for distance in range(last - first + 1):
        for at in (middle + distance, middle - distance) if distance else (middle,):
            if first <= at <= last:
                yield at


def _has_lost_returns(old: list[str], found: list[str]) -> bool:
    """Whether the file uses CR LF but the hunk was written with LF."""
    return found != old and all(line.endswith("\r\n") for line in found) and not any("\r" in line for line in old)


def _merge_lines(hunk: Hunk, found: list[str], has_lost_returns: bool) -> Iterator[str]:
    """The hunk's new lines; context lines are taken from the file."""
    old = iter(found)
    for sign, content in hunk.lines:
        if sign == " ":
            yield next(old)
        elif sign == "-":
            next(old)
        else:
            yield content.removesuffix("\n") + "\r\n" if has_lost_returns else content
