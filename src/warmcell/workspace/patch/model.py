"""Pure module: what a patch says, whichever form it was written in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from warmcell.core.errors import PathTraversal
from warmcell.workspace.errors import PatchRejected
from warmcell.workspace.names import Parts, split_relative


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines that stay (" "), go ("-") or come ("+"), with their line ends. `title` is its header as it was written.

    Where it belongs: near line `start` when it has one; after the lines `anchors`; at the end of the file.
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
    """What to do to one file. `old` is None for a new file, `new` for a deleted one; both differ for a move or copy.

    `is_whole`: a deletion that does not say what the file holds.
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
    """Lines with their ends. Only LF ends a line here; CR, form feeds and Unicode separators are content."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def named_file(text: str) -> Parts:
    """The names of a path in a patch, which must lead to something beneath the workspace."""
    try:
        parts = split_relative(text)
    except PathTraversal as error:
        raise PatchRejected(f"bad file name: {error.message}") from None
    if not parts:
        raise PatchRejected("bad file name: the workspace itself")
    return parts
