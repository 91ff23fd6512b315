"""Pure module: unified diffs. Text in, file patches out; file patches and old text in, new text out. Nothing is opened.

What `patch(1)` and git accept beyond that has a history of running commands and writing elsewhere; here an ed script,
a symbolic link, a submodule, a binary patch, or a header that is not exactly one is refused with the whole patch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from warmcell.core.errors import PathTraversal
from warmcell.core.types import MIB
from warmcell.workspace.errors import PatchRejected
from warmcell.workspace.names import Parts, shown, split_relative

MAX_PATCH_BYTES = 8 * MIB
_NOTHING = "/dev/null"
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_MODES = {"100644": False, "100755": True}
_MOVES = ("rename from", "rename to", "copy from", "copy to")
_WORDS = (*_MOVES, "new file mode", "deleted file mode", "old mode", "new mode")
#: Lines that tools put before a file's diff and that carry nothing for us.
_IDLE = ("index ", "similarity index ", "dissimilarity index ", "diff ", "Index: ", "=====")


@dataclass(frozen=True, slots=True)
class Hunk:
    """A run of old lines and what takes their place. Lines keep their line ends; the last may have none."""

    old_start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(slots=True)
class FilePatch:
    """What to do to one file. `old` is None for a new file, `new` for a deleted one; both differ for a move or copy."""

    old: Parts | None = None
    new: Parts | None = None
    is_copy: bool = False
    executable: bool | None = None
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def target(self) -> Parts:
        return self.new or self.old or ()


def parse_patch(text: str) -> list[FilePatch]:
    """All file patches of a unified diff, git's headers included, or `PatchRejected`."""
    if len(text) > MAX_PATCH_BYTES:
        raise PatchRejected(f"the patch is larger than {MAX_PATCH_BYTES} bytes")
    patches = _Parser(text).parse()
    if not patches:
        raise PatchRejected("this is not a unified diff", hint="it needs '--- a/file', '+++ b/file' and '@@' lines")
    return patches


class _Parser:
    def __init__(self, text: str) -> None:
        # Not splitlines(): form feeds and Unicode separators belong to the content.
        self._lines = re.findall(r"[^\n]*\n|[^\n]+", text)
        self._at = 0

    def parse(self) -> list[FilePatch]:
        patches: list[FilePatch] = []
        if self._lines and re.match(r"From [0-9a-f]{40} ", self._lines[0]):
            self._skip_letter()
        while self._at < len(self._lines) and self._lines[self._at].rstrip("\n") != "-- ":
            if self._peek() == "":
                self._at += 1
            else:
                patches.append(self._file())
        return patches

    def _skip_letter(self) -> None:
        """`git format-patch` writes a letter before the diff."""
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
        _check_complete(patch, headers)
        return patch

    def _headers(self) -> Iterator[tuple[str, str]]:
        """The lines before a file's hunks, as (word, rest). The first that is not a header ends the patch's welcome."""
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
        line = self._take()
        match = _HUNK.match(line)
        if match is None:
            raise PatchRejected(f"malformed hunk header {shown(line)!r}")
        start, old_count, _, new_count = (int(group) if group is not None else 1 for group in match.groups())
        old: list[str] = []
        new: list[str] = []
        while len(old) < old_count or len(new) < new_count:
            self._hunk_line(old, new)
        if len(old) != old_count or len(new) != new_count:
            raise PatchRejected(f"the hunk {shown(line)!r} has more lines than it says")
        return Hunk(start, tuple(old), tuple(new))

    def _hunk_line(self, old: list[str], new: list[str]) -> None:
        if self._at >= len(self._lines):
            raise PatchRejected("the last hunk has fewer lines than its header says")
        line = self._lines[self._at]
        self._at += 1
        sign, content = line[0], line[1:]
        # Editors strip the blank of an empty context line.
        if sign == "\n":
            sign, content = " ", "\n"
        if sign not in " +-":
            raise PatchRejected(f"unexpected line {shown(line.rstrip())!r} in a hunk")
        if sign in " -":
            old.append(content)
        if sign in " +":
            new.append(content)
        self._missing_newline(old, new, sign)

    def _missing_newline(self, old: list[str], new: list[str], sign: str) -> None:
        """The line "\\ No newline at end of file" speaks of the line before it."""
        if not self._peek().startswith("\\ "):
            return
        self._at += 1
        for side, signs in ((old, " -"), (new, " +")):
            if sign in signs:
                side[-1] = side[-1].removesuffix("\n")


def _without_return(line: str) -> str:
    """The header, unless a carriage return ends it: that would become part of a name, or hide what the line is."""
    if line.endswith("\r"):
        raise PatchRejected(f"the header {shown(line)!r} ends in a carriage return", hint="use LF line ends")
    return line


def _header(line: str) -> tuple[str, str]:
    for word in _WORDS:
        if line.startswith(word + " "):
            return word, line[len(word) + 1 :]
    if line.startswith("diff --git "):
        return "diff --git", line[11:]
    if line.startswith(_IDLE):
        return "idle", line
    raise PatchRejected(f"unexpected line {shown(line)!r}; only unified diffs are applied")


def _from_headers(headers: dict[str, str]) -> FilePatch:
    patch = FilePatch()
    for word in ("new file mode", "deleted file mode", "old mode", "new mode"):
        if word in headers:
            if headers[word] not in _MODES:
                raise PatchRejected(f"file mode {shown(headers[word])!r} is not a plain file's")
            patch.executable = _MODES[headers[word]] if word.startswith("new") else patch.executable
    patch.is_copy = "copy from" in headers
    moved = "copy" if patch.is_copy else "rename"
    if f"{moved} from" in headers or f"{moved} to" in headers:
        patch.old = _path(_unquoted(headers.get(f"{moved} from", "")))
        patch.new = _path(_unquoted(headers.get(f"{moved} to", "")))
        _check_agrees(headers, patch)
    elif "---" in headers:
        patch.old, patch.new = _names(headers["---"], headers["+++"])
    else:
        _name_by_git_line(patch, headers)
    return patch


def _name_by_git_line(patch: FilePatch, headers: dict[str, str]) -> None:
    """Empty files and changes of mode have no '---' line; git then names the same file twice."""
    line = headers.get("diff --git", "")
    half = len(line) // 2
    if line and line[half] == " ":
        old, new = _names(line[:half], line[half + 1 :])
        if old == new and any("mode" in word for word in headers):
            patch.old = None if "new file mode" in headers else old
            patch.new = None if "deleted file mode" in headers else new


def _check_agrees(headers: dict[str, str], patch: FilePatch) -> None:
    if "---" in headers and _names(headers["---"], headers["+++"]) != (patch.old, patch.new):
        raise PatchRejected("the rename or copy names other files than the '---' and '+++' lines")


def _check_complete(patch: FilePatch, headers: dict[str, str]) -> None:
    if patch.old is None and patch.new is None:
        raise PatchRejected("a part of the patch names no file, or is binary")
    is_move = patch.old is not None and patch.new is not None and patch.old != patch.new
    if is_move and "rename from" not in headers and "copy from" not in headers:
        raise PatchRejected(f"'---' and '+++' name different files for {'/'.join(patch.target)!r}")
    if not patch.hunks and "---" in headers:
        raise PatchRejected(f"the patch of {'/'.join(patch.target)!r} has no hunks")


def _names(old: str, new: str) -> tuple[Parts | None, Parts | None]:
    """Both names without git's "a/" and "b/", when both have them (or are /dev/null)."""
    old, new = _unquoted(old), _unquoted(new)
    if old == new == _NOTHING:
        raise PatchRejected("a patch cannot be from /dev/null to /dev/null")
    if old.startswith(("a/", _NOTHING)) and new.startswith(("b/", _NOTHING)):
        old, new = (name if name == _NOTHING else name[2:] for name in (old, new))
    old_path, new_path = (None if name == _NOTHING else _path(name) for name in (old, new))
    return old_path, new_path


def _path(text: str) -> Parts:
    try:
        parts = split_relative(text)
    except PathTraversal as error:
        raise PatchRejected(f"bad file name: {error.message}") from None
    if not parts:
        raise PatchRejected("bad file name: the workspace itself")
    return parts


_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "a": "\a", "b": "\b", "f": "\f", "r": "\r", "v": "\v"}


def _unquoted(text: str) -> str:
    """A name as git writes it: in C quotes when it is odd; otherwise up to a tab, after which a date may stand."""
    if not text.startswith('"'):
        return text.split("\t")[0]
    match = re.match(r'"((?:[^"\\]|\\.)*)"', text)
    if match is None:
        raise PatchRejected(f"bad quoting in {shown(text)!r}")

    def replaced(found: re.Match[str]) -> str:
        escape = found.group(1)
        return chr(int(escape, 8)) if escape[0] in "01234567" else _ESCAPES.get(escape, escape)

    try:
        plain = re.sub(r"\\([0-7]{1,3}|.)", replaced, match.group(1))
        return plain.encode("latin-1").decode("utf-8")
    except (UnicodeError, ValueError):
        raise PatchRejected(f"bad quoting in {shown(text)!r}") from None
