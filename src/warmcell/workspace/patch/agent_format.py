"""Parses the patch format that coding agents are trained to write. Pure.

*** Begin Patch
*** Add File: NAME              then lines with '+'
*** Delete File: NAME
*** Update File: NAME           then, if it moves, *** Move to: NAME, then hunks
@@ a line above the change      any number of these; may also have line numbers
 context, -removed and +added lines
*** End of File                 the hunk is at the end of the file
*** End Patch
"""

from __future__ import annotations

from warmcell.workspace.errors import PatchRejected
from warmcell.workspace.names import display_path
from warmcell.workspace.patch.model import FilePatch, Hunk, parse_file_name, split_lines
from warmcell.workspace.patch.unified_diff import start_line

BEGIN = "*** Begin Patch"
_END = "*** End Patch"
_ADD = "*** Add File: "
_DELETE = "*** Delete File: "
_UPDATE = "*** Update File: "
_MOVE = "*** Move to: "
_END_OF_FILE = "*** End of File"


def parse_agent_patch(text: str) -> list[FilePatch]:
    """Parse all file patches. Raises `PatchRejected` if the last line is missing: the text may be truncated."""
    return _Parser(split_lines(text.strip("\n \t") + "\n")).parse()


class _Parser:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 1

    def parse(self) -> list[FilePatch]:
        patches: list[FilePatch] = []
        while self._peek() != _END:
            if self._at >= len(self._lines):
                raise PatchRejected(f"the patch does not end with '{_END}'", hint="it may be truncated")
            if not self._peek():
                self._at += 1
            else:
                patches.append(self._file())
        if self._at + 1 != len(self._lines):
            raise PatchRejected(f"there is text after '{_END}'")
        return patches

    def _peek(self) -> str:
        return self._lines[self._at].rstrip() if self._at < len(self._lines) else ""

    def _file(self) -> FilePatch:
        line = self._peek()
        self._at += 1
        if line.startswith(_ADD):
            return FilePatch(None, parse_file_name(line[len(_ADD) :]), hunks=self._parse_added_lines(line))
        if line.startswith(_DELETE):
            return FilePatch(parse_file_name(line[len(_DELETE) :]), None, is_whole=True)
        if line.startswith(_UPDATE):
            return self._parse_update(parse_file_name(line[len(_UPDATE) :]))
        raise PatchRejected(
            f"unexpected line {display_path(line)!r}; a file begins with '{_ADD}', '{_UPDATE}' or '{_DELETE}'"
        )

    def _parse_added_lines(self, title: str) -> list[Hunk]:
        lines = []
        while self._has_more_lines() and self._lines[self._at].startswith("+"):
            lines.append(("+", self._lines[self._at][1:]))
            self._at += 1
        return [Hunk(title, tuple(lines), 0)] if lines else []

    def _parse_update(self, old: tuple[str, ...]) -> FilePatch:
        patch = FilePatch(old, old)
        if self._peek().startswith(_MOVE):
            patch.new = parse_file_name(self._peek()[len(_MOVE) :])
            self._at += 1
        while self._has_more_lines() and not self._peek().startswith("*** "):
            patch.hunks.append(self._hunk())
        if not patch.hunks and patch.new == old:
            raise PatchRejected(f"the patch of {'/'.join(old)!r} has no hunks")
        return patch

    def _has_more_lines(self) -> bool:
        return self._at < len(self._lines)

    def _hunk(self) -> Hunk:
        title, start, anchors = "(no header)", None, []
        while self._peek().startswith("@@"):
            title, start = self._peek(), start_line(self._peek())
            anchor = self._peek()[2:].removesuffix("@@").strip()
            if start is None and anchor:
                anchors.append(anchor)
            self._at += 1
        lines = self._hunk_lines()
        is_at_end = self._peek() == _END_OF_FILE
        self._at += is_at_end
        if all(sign == " " for sign, _ in lines):
            raise PatchRejected(f"the hunk {display_path(title)!r} changes nothing")
        return Hunk(title, tuple(lines), start, tuple(anchors), is_at_end)

    def _hunk_lines(self) -> list[tuple[str, str]]:
        lines: list[tuple[str, str]] = []
        empty_tail = 0  # empty lines before the next header are not part of the hunk
        while self._has_more_lines() and not self._peek().startswith(("@@", "*** ")):
            line = self._lines[self._at]
            empty_tail = empty_tail + 1 if line == "\n" else 0
            # An empty context line whose leading blank was stripped.
            sign, content = (" ", "\n") if line == "\n" else (line[0], line[1:])
            if sign not in " +-":
                raise PatchRejected(f"unexpected line {display_path(line.rstrip())!r} in a hunk")
            lines.append((sign, content))
            self._at += 1
        return lines[: len(lines) - empty_tail]
