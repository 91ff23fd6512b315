"""A parsed patch, independent of its format. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from warmcell.core.errors import PathTraversal
from warmcell.workspace.errors import PatchRejected
from warmcell.workspace.names import Parts, split_relative


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
