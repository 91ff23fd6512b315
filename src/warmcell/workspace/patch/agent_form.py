"""Pure module: the form of patches that coding agents are trained to write.

*** Begin Patch
*** Add File: NAME              then lines with '+'
*** Delete File: NAME
*** Update File: NAME           then, if it moves, *** Move to: NAME, then hunks
@@ a line above the change      none, one or several; line numbers may stand there too
 lines that stay, -go, +come
*** End of File                 the hunk belongs at the end
*** End Patch
"""

from __future__ import annotations

from warmcell.workspace.errors import PatchRejected
from warmcell.workspace.names import shown
from warmcell.workspace.patch.model import FilePatch, Hunk, named_file, split_lines
from warmcell.workspace.patch.unified import start_line

BEGIN = "*** Begin Patch"
_END = "*** End Patch"
_ADD = "*** Add File: "
_DELETE = "*** Delete File: "
_UPDATE = "*** Update File: "
_MOVE = "*** Move to: "
_END_OF_FILE = "*** End of File"


def parse_agent_form(text: str) -> list[FilePatch]:
    """All file patches between the first and the last line. Without the last line the text was cut: nothing is done."""
    return _Parser(split_lines(text.strip("\n \t") + "\n")).parse()


class _Parser:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 1

    def parse(self) -> list[FilePatch]:
        patches: list[FilePatch] = []
        while self._peek() != _END:
            if self._at >= len(self._lines):
                raise PatchRejected(f"the patch does not end with '{_END}'", hint="it may have been cut off")
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
            return FilePatch(None, named_file(line[len(_ADD) :]), hunks=self._added(line))
        if line.startswith(_DELETE):
            return FilePatch(named_file(line[len(_DELETE) :]), None, is_whole=True)
        if line.startswith(_UPDATE):
            return self._updated(named_file(line[len(_UPDATE) :]))
        raise PatchRejected(f"unexpected line {shown(line)!r}; a file begins with '{_ADD}', '{_UPDATE}' or '{_DELETE}'")

    def _added(self, title: str) -> list[Hunk]:
        lines = []
        while self._lines_left() and self._lines[self._at].startswith("+"):
            lines.append(("+", self._lines[self._at][1:]))
            self._at += 1
        return [Hunk(title, tuple(lines), 0)] if lines else []

    def _updated(self, old: tuple[str, ...]) -> FilePatch:
        patch = FilePatch(old, old)
        if self._peek().startswith(_MOVE):
            patch.new = named_file(self._peek()[len(_MOVE) :])
            self._at += 1
        while self._lines_left() and not self._peek().startswith("*** "):
            patch.hunks.append(self._hunk())
        if not patch.hunks and patch.new == old:
            raise PatchRejected(f"the patch of {'/'.join(old)!r} has no hunks")
        return patch

    def _lines_left(self) -> bool:
        return self._at < len(self._lines)

    def _hunk(self) -> Hunk:
        title, start, anchors = "its first lines", None, []
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
            raise PatchRejected(f"the hunk {shown(title)!r} changes nothing")
        return Hunk(title, tuple(lines), start, tuple(anchors), is_at_end)

    def _hunk_lines(self) -> list[tuple[str, str]]:
        lines: list[tuple[str, str]] = []
        empty_tail = 0  # empty lines before the next header belong to nobody
        while self._lines_left() and not self._peek().startswith(("@@", "*** ")):
            line = self._lines[self._at]
            empty_tail = empty_tail + 1 if line == "\n" else 0
            # An empty line that stays has lost its blank.
            sign, content = (" ", "\n") if line == "\n" else (line[0], line[1:])
            if sign not in " +-":
                raise PatchRejected(f"unexpected line {shown(line.rstrip())!r} in a hunk")
            lines.append((sign, content))
            self._at += 1
        return lines[: len(lines) - empty_tail]
