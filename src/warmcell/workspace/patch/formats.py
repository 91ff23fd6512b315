"""Parses patches: unified diffs, and the format that coding agents are trained to write. Pure.

Extensions of unified diffs that `patch(1)` and git accept have led to command execution and writes elsewhere. An ed
script, symbolic link, submodule, binary patch or malformed header rejects the whole patch. The format of agents:

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

import re
from collections.abc import Iterator

from warmcell.workspace.errors import PatchRejected
from warmcell.workspace.names import Parts, display_path
from warmcell.workspace.patch.hunks import FilePatch, Hunk, parse_file_name, split_lines

_NOTHING = "/dev/null"
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_MODES = {"100644": False, "100755": True}
_MOVES = ("rename from", "rename to", "copy from", "copy to")
_WORDS = (*_MOVES, "new file mode", "deleted file mode", "old mode", "new mode")
#: Lines that tools write before a file's diff and that are ignored.
_IDLE = ("index ", "similarity index ", "dissimilarity index ", "diff ", "Index: ", "=====")
_BETWEEN = (*_IDLE, *_WORDS)


def parse_unified(text: str) -> list[FilePatch]:
    """Parse a unified diff, including git's headers."""
    return _Parser(split_lines(text)).parse()


def start_line(header: str) -> int | None:
    """The first old line in a hunk's header, or None."""
    match = _HUNK.match(header)
    return int(match[1]) if match else None


class _Parser:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0

    def parse(self) -> list[FilePatch]:
        patches: list[FilePatch] = []
        if self._lines and re.match(r"From [0-9a-f]{40} ", self._lines[0]):
            self._skip_mail()
        while self._at < len(self._lines) and self._lines[self._at].rstrip("\n") != "-- ":
            if self._peek() == "":
                self._at += 1
            else:
                patches.append(self._file())
        return patches

    def _skip_mail(self) -> None:
        """Skip the mail that `git format-patch` writes before the diff."""
        while self._at < len(self._lines) and not self._peek().startswith(("diff --git ", "--- a/")):
            self._at += 1

    def _peek(self) -> str:
        return self._lines[self._at].rstrip("\n") if self._at < len(self._lines) else ""

    def _take(self) -> str:
        line = self._peek()
        self._at += 1
        return line

    def _file(self) -> FilePatch:
        headers = dict(self._headers())
        patch = _from_headers(headers)
        while self._peek().startswith("@@"):
            patch.hunks.append(self._hunk())
            self._skip_empty_lines()
        _check_complete(patch, headers)
        return patch

    def _headers(self) -> Iterator[tuple[str, str]]:
        """The header lines before a file's hunks, as (keyword, rest)."""
        seen_git = False
        while self._at < len(self._lines) and self._peek() and not self._peek().startswith("@@"):
            line = _without_return(self._peek())
            if line.startswith("diff --git "):
                if seen_git:
                    return
                seen_git = True
            self._at += 1
            if line.startswith("--- ") and self._peek().startswith("+++ "):
                yield "---", line[4:]
                yield "+++", _without_return(self._take())[4:]
                return
            yield _header(line)

    def _hunk(self) -> Hunk:
        """Parse by the header's counts if they are right, otherwise up to the next header."""
        title = self._take()
        match = _HUNK.match(title)
        if title.startswith("@@@"):
            raise PatchRejected("combined diffs of merges are not supported", hint="diff against one parent")
        begin = self._at
        lines = self._parse_counted_hunk(*(int(match[group] or 1) for group in (2, 4))) if match else None
        if lines is None:
            self._at = begin
            lines = self._parse_uncounted_hunk()
        if all(sign == " " for sign, _ in lines):
            raise PatchRejected(f"the hunk {display_path(title)!r} changes nothing")
        return Hunk(title, tuple(lines), start_line(title))

    def _parse_counted_hunk(self, old_count: int, new_count: int) -> list[tuple[str, str]] | None:
        """The lines according to the counts, or None if the counts are wrong."""
        lines: list[tuple[str, str]] = []
        while old_count > 0 or new_count > 0:
            if self._at >= len(self._lines) or self._lines[self._at][0] not in "\n +-" or self._is_next_file():
                return None
            sign = self._hunk_line(lines)
            old_count -= sign != "+"
            new_count -= sign != "-"
        return lines if old_count == new_count == 0 and self._is_hunk_over() else None

    def _is_hunk_over(self) -> bool:
        """Whether a header or the end follows, after empty lines."""
        end = self._at
        self._skip_empty_lines()
        at, self._at = self._at, end
        return at >= len(self._lines) or self._is_boundary(at)

    def _skip_empty_lines(self) -> None:
        while self._at < len(self._lines) and self._lines[self._at] == "\n":
            self._at += 1

    def _is_next_file(self) -> bool:
        """Whether the next three lines are a file header; its first two could also be a "-" and a "+" line."""
        old, new, hunk = (*self._lines[self._at : self._at + 3], "", "", "")[:3]
        is_old = old.startswith(("--- a/", "--- /dev/null"))
        return is_old and new.startswith(("+++ b/", "+++ /dev/null")) and hunk.startswith("@@")

    def _is_boundary(self, at: int) -> bool:
        line = self._lines[at]
        if line.startswith("--- "):
            return at + 1 < len(self._lines) and self._lines[at + 1].startswith("+++ ")
        return line.startswith(("@@", *_BETWEEN)) or line == "-- \n"

    def _parse_uncounted_hunk(self) -> list[tuple[str, str]]:
        lines: list[tuple[str, str]] = []
        empty_tail = 0  # empty lines before the next header are not part of the hunk
        while self._at < len(self._lines) and not self._is_boundary(self._at):
            line = self._lines[self._at]
            if line[0] not in "\n +-":
                raise PatchRejected(f"unexpected line {display_path(line.rstrip())!r} in a hunk")
            empty_tail = empty_tail + 1 if line == "\n" else 0
            self._hunk_line(lines)
        return lines[: len(lines) - empty_tail]

    def _hunk_line(self, lines: list[tuple[str, str]]) -> str:
        """Consume one line and a following "\\ No newline at end of file"; return its sign."""
        line = self._lines[self._at]
        self._at += 1
        # Editors strip the leading blank of an empty context line.
        sign, content = (" ", "\n") if line == "\n" else (line[0], line[1:])
        if self._peek().startswith("\\ "):
            self._at += 1
            content = content.removesuffix("\n")
        lines.append((sign, content))
        return sign


def _without_return(line: str) -> str:
    """Refuse a header that ends in a carriage return, which would become part of a name."""
    if line.endswith("\r"):
        raise PatchRejected(f"the header {display_path(line)!r} ends in a carriage return", hint="use LF line ends")
    return line


def _header(line: str) -> tuple[str, str]:
    for word in _WORDS:
        if line.startswith(word + " "):
            return word, line[len(word) + 1 :]
    if line.startswith("diff --git "):
        return "diff --git", line[11:]
    if line.startswith(_IDLE):
        return "idle", line
    raise PatchRejected(f"unexpected line {display_path(line)!r}; only unified diffs are applied")


def _from_headers(headers: dict[str, str]) -> FilePatch:
    patch = FilePatch()
    for word in ("new file mode", "deleted file mode", "old mode", "new mode"):
        if word in headers:
            if headers[word] not in _MODES:
                raise PatchRejected(f"file mode {display_path(headers[word])!r} is not a plain file's")
            patch.executable = _MODES[headers[word]] if word.startswith("new") else patch.executable
    patch.is_copy = "copy from" in headers
    moved = "copy" if patch.is_copy else "rename"
    if f"{moved} from" in headers or f"{moved} to" in headers:
        patch.old = parse_file_name(_unquote(headers.get(f"{moved} from", "")))
        patch.new = parse_file_name(_unquote(headers.get(f"{moved} to", "")))
        if "---" in headers and _names(headers["---"], headers["+++"]) != (patch.old, patch.new):
            raise PatchRejected("the rename or copy does not match the '---' and '+++' lines")
    elif "---" in headers:
        patch.old, patch.new = _names(headers["---"], headers["+++"])
    else:
        _name_by_git_line(patch, headers)
    return patch


def _name_by_git_line(patch: FilePatch, headers: dict[str, str]) -> None:
    """Take the name from the 'diff --git' line: empty files and mode changes have no '---' line."""
    line = headers.get("diff --git", "")
    half = len(line) // 2
    if line and line[half] == " ":
        old, new = _names(line[:half], line[half + 1 :])
        if old == new and any("mode" in word for word in headers):
            patch.old = None if "new file mode" in headers else old
            patch.new = None if "deleted file mode" in headers else new


def _check_complete(patch: FilePatch, headers: dict[str, str]) -> None:
    if patch.old is None and patch.new is None:
        raise PatchRejected("a part of the patch has no file name or is binary")
    is_move = patch.old is not None and patch.new is not None and patch.old != patch.new
    if is_move and "rename from" not in headers and "copy from" not in headers:
        raise PatchRejected(f"'---' and '+++' name different files for {'/'.join(patch.target)!r}")
    if not patch.hunks and "---" in headers:
        raise PatchRejected(f"the patch of {'/'.join(patch.target)!r} has no hunks")


def _names(old: str, new: str) -> tuple[Parts | None, Parts | None]:
    """Both names without git's "a/" and "b/", if both have them or are /dev/null."""
    old, new = _unquote(old), _unquote(new)
    if old == new == _NOTHING:
        raise PatchRejected("a patch cannot be from /dev/null to /dev/null")
    if old.startswith(("a/", _NOTHING)) and new.startswith(("b/", _NOTHING)):
        old, new = (name if name == _NOTHING else name[2:] for name in (old, new))
    old_path, new_path = (None if name == _NOTHING else parse_file_name(name) for name in (old, new))
    return old_path, new_path


_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "a": "\a", "b": "\b", "f": "\f", "r": "\r", "v": "\v"}


def _unquote(text: str) -> str:
    """Decode a name as git writes it: C-quoted if it has special characters, else up to a tab (a date may follow)."""
    if not text.startswith('"'):
        return text.split("\t")[0]
    match = re.match(r'"((?:[^"\\]|\\.)*)"', text)
    if match is None:
        raise PatchRejected(f"bad quoting in {display_path(text)!r}")

    def unescape(found: re.Match[str]) -> str:
        escape = found.group(1)
        return chr(int(escape, 8)) if escape[0] in "01234567" else _ESCAPES.get(escape, escape)

    try:
        plain = re.sub(r"\\([0-7]{1,3}|.)", unescape, match.group(1))
        return plain.encode("latin-1").decode("utf-8")
    except (UnicodeError, ValueError):
        raise PatchRejected(f"bad quoting in {display_path(text)!r}") from None


BEGIN = "*** Begin Patch"
_END = "*** End Patch"
_ADD = "*** Add File: "
_DELETE = "*** Delete File: "
_UPDATE = "*** Update File: "
_MOVE = "*** Move to: "
_END_OF_FILE = "*** End of File"


def parse_agent_patch(text: str) -> list[FilePatch]:
    """Parse all file patches. Raises `PatchRejected` if the last line is missing: the text may be truncated."""
    return _AgentParser(split_lines(text.strip("\n \t") + "\n")).parse()


class _AgentParser:
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
        expected = f"a file begins with '{_ADD}', '{_UPDATE}' or '{_DELETE}'"
        raise PatchRejected(f"unexpected line {display_path(line)!r}; {expected}")

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
