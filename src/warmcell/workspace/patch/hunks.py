"""Pure module: puts hunks into text, with bounded effort."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from warmcell.workspace.errors import PatchRejected
from warmcell.workspace.names import shown
from warmcell.workspace.patch.model import Hunk, split_lines

#: How many lines a whole patch may compare in search of where its hunks belong; a hostile one could need billions.
_MAX_COMPARISONS = 5_000_000
#: Whoever wrote a patch that fits nowhere learns no more from the next hundred; and each costs a search to the end.
MAX_MISFITS = 100


class Effort:
    """What is left of the comparisons, for all files of a patch together."""

    def __init__(self) -> None:
        self._left = _MAX_COMPARISONS

    def spend(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise PatchRejected("finding the places of the hunks takes too long")


class _Unplaced(Exception):
    """The file has no place for a hunk; says why."""


def apply_hunks(text: str, hunks: Sequence[Hunk], effort: Effort | None = None) -> tuple[str, list[tuple[int, str]]]:
    """The patched text, and for each hunk that found no place its number and the reason.

    Hunks come in the file's order and may have moved. Their lines must match, but for blanks at the ends of lines, and
    lines that stay do so as the file has them.
    """
    file = _File(split_lines(text), effort or Effort())
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
    """A file while it is patched: what is done, and the old lines that are still to come."""

    def __init__(self, lines: list[str], effort: Effort) -> None:
        effort.spend(len(lines))
        self._lines = lines
        self._bare = [line.rstrip() for line in lines]
        self._effort = effort
        self._done, self._shift = 0, 0
        self._result: list[str] = []

    def put(self, hunk: Hunk) -> None:
        old = hunk.old
        first = self._after_anchors(hunk.anchors)
        at = self._place_between(hunk, first) if not old else self._place_of(hunk, old, first)
        found = self._lines[at : at + len(old)]
        self._result += self._lines[self._done : at]
        self._result += _merged(hunk, found, _has_lost_returns(old, found))
        self._done = at + len(old)
        if hunk.start is not None:
            self._shift = at - (hunk.start - (1 if old else 0))

    def text(self) -> str:
        """Only the last line may lack its end; a hunk that says otherwise would glue two lines together."""
        lines = self._result + self._lines[self._done :]
        ended = [line if line.endswith("\n") else line + "\n" for line in lines[:-1]]
        return "".join(ended + lines[-1:])

    def _after_anchors(self, anchors: Sequence[str]) -> int:
        at = self._done
        for anchor in anchors:
            self._effort.spend(len(self._bare) - at)
            found = next((n for n in range(at, len(self._bare)) if self._bare[n].strip() == anchor), None)
            if found is None:
                raise _Unplaced(f"the line {shown(anchor)!r} that its '@@' names is not there{self._since()}")
            at = found + 1
        return at

    def _place_between(self, hunk: Hunk, first: int) -> int:
        """For lines that only come: by number, after the anchors, or at the end."""
        if hunk.start is None:
            return first if hunk.anchors and not hunk.is_at_end else len(self._lines)
        at = hunk.start + self._shift if self._lines else 0
        if not first <= at <= len(self._lines):
            raise _Unplaced(f"it adds lines after line {hunk.start}, and the file has {len(self._lines)}")
        return at

    def _place_of(self, hunk: Hunk, old: list[str], first: int) -> int:
        """Where all old lines stand: exactly, or else but for blanks at the ends of lines."""
        bare = [line.rstrip() for line in old]
        for lines, wanted in ((self._lines, old), (self._bare, bare)):
            for at in self._candidates(hunk, first, len(self._lines) - len(old)):
                self._effort.spend(1)
                if lines[at] == wanted[0]:
                    self._effort.spend(len(wanted))
                    if lines[at : at + len(wanted)] == wanted:
                        return at
        raise _Unplaced(self._reason(bare, first))

    def _candidates(self, hunk: Hunk, first: int, last: int) -> Iterator[int]:
        """Nearest first where a line number says where; otherwise in the file's order."""
        if hunk.start is not None:
            return _outwards(hunk.start - 1 + self._shift, first, last)
        return _outwards(last if hunk.is_at_end else first, first, last)

    def _reason(self, wanted: list[str], first: int) -> str:
        """Where most of the hunk's lines stand one after another, and what is there instead of the next."""
        most, place = 0, first
        for at in range(first, len(self._bare)):
            length = self._agreement(at, wanted)
            if length > most:
                most, place = length, at
        if not most:
            return f"the line {shown(wanted[0])!r} is not there{self._since()}"
        there = place + most
        found = f"line {there + 1} is {shown(self._bare[there])!r}" if there < len(self._bare) else "the file ends"
        return f"it fits from line {place + 1} on, but then {found} and not {shown(wanted[most])!r}"

    def _agreement(self, at: int, wanted: list[str]) -> int:
        length = 0
        while length < len(wanted) and at + length < len(self._bare) and self._bare[at + length] == wanted[length]:
            length += 1
        self._effort.spend(length + 1)
        return length

    def _since(self) -> str:
        return f" after line {self._done}, where the hunk before it ends" if self._done else ""


def _outwards(middle: int, first: int, last: int) -> Iterator[int]:
    middle = min(max(middle, first), last)
    for distance in range(last - first + 1):
        for at in (middle + distance, middle - distance) if distance else (middle,):
            if first <= at <= last:
                yield at


def _has_lost_returns(old: list[str], found: list[str]) -> bool:
    """Whether the file ends its lines with CR LF and whoever wrote the hunk did not see that."""
    return found != old and all(line.endswith("\r\n") for line in found) and not any("\r" in line for line in old)


def _merged(hunk: Hunk, found: list[str], has_lost_returns: bool) -> Iterator[str]:
    """The hunk's new lines, where those that stay are the file's own."""
    standing = iter(found)
    for sign, content in hunk.lines:
        if sign == " ":
            yield next(standing)
        elif sign == "-":
            next(standing)
        else:
            yield content.removesuffix("\n") + "\r\n" if has_lost_returns else content
