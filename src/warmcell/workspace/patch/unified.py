"""Pure module: unified diffs. Text in, file patches out.

What `patch(1)` and git accept beyond that has a history of running commands and writing elsewhere; here an ed script,
a symbolic link, a submodule, a binary patch, or a header that is not exactly one is refused with the whole patch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from warmcell.workspace.errors import PatchRejected
from warmcell.workspace.names import Parts, shown
from warmcell.workspace.patch.model import FilePatch, Hunk, named_file, split_lines

_NOTHING = "/dev/null"
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_MODES = {"100644": False, "100755": True}
_MOVES = ("rename from", "rename to", "copy from", "copy to")
_WORDS = (*_MOVES, "new file mode", "deleted file mode", "old mode", "new mode")
#: Lines that tools put before a file's diff and that carry nothing for us.
_IDLE = ("index ", "similarity index ", "dissimilarity index ", "diff ", "Index: ", "=====")
_BETWEEN = (*_IDLE, *_WORDS)


def parse_unified(text: str) -> list[FilePatch]:
    """All file patches of a unified diff, git's headers included."""
    return _Parser(split_lines(text)).parse()


def start_line(header: str) -> int | None:
    """Where a hunk's header says that it begins in the old file, if it says so."""
    match = _HUNK.match(header)
    return int(match[1]) if match else None


class _Parser:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
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
            self._skip_empty_lines()
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
        """By the header's counts where they are right; otherwise up to what can only be something else."""
        title = self._take()
        match = _HUNK.match(title)
        if title.startswith("@@@"):
            raise PatchRejected("this is the diff of a merge, which has two old sides", hint="diff against one of them")
        begin = self._at
        lines = self._counted(*(int(match[group] or 1) for group in (2, 4))) if match else None
        if lines is None:
            self._at = begin
            lines = self._uncounted()
        if all(sign == " " for sign, _ in lines):
            raise PatchRejected(f"the hunk {shown(title)!r} changes nothing")
        return Hunk(title, tuple(lines), start_line(title))

    def _counted(self, old_count: int, new_count: int) -> list[tuple[str, str]] | None:
        """The lines that the counts speak of, if there are so many and the hunk ends with them."""
        lines: list[tuple[str, str]] = []
        while old_count > 0 or new_count > 0:
            if self._at >= len(self._lines) or self._lines[self._at][0] not in "\n +-" or self._is_next_file():
                return None
            sign = self._hunk_line(lines)
            old_count -= sign != "+"
            new_count -= sign != "-"
        return lines if old_count == new_count == 0 and self._is_hunk_over() else None

    def _is_hunk_over(self) -> bool:
        """Whether something else begins here, behind empty lines."""
        end = self._at
        self._skip_empty_lines()
        at, self._at = self._at, end
        return at >= len(self._lines) or self._is_boundary(at)

    def _skip_empty_lines(self) -> None:
        while self._at < len(self._lines) and self._lines[self._at] == "\n":
            self._at += 1

    def _is_next_file(self) -> bool:
        """Three lines that are the next file's header, although a "-" and a "+" line could look like the first two."""
        old, new, hunk = (*self._lines[self._at : self._at + 3], "", "", "")[:3]
        is_old = old.startswith(("--- a/", "--- /dev/null"))
        return is_old and new.startswith(("+++ b/", "+++ /dev/null")) and hunk.startswith("@@")

    def _is_boundary(self, at: int) -> bool:
        line = self._lines[at]
        if line.startswith("--- "):
            return at + 1 < len(self._lines) and self._lines[at + 1].startswith("+++ ")
        return line.startswith(("@@", *_BETWEEN)) or line == "-- \n"

    def _uncounted(self) -> list[tuple[str, str]]:
        lines: list[tuple[str, str]] = []
        empty_tail = 0  # empty lines before the next header belong to nobody
        while self._at < len(self._lines) and not self._is_boundary(self._at):
            line = self._lines[self._at]
            if line[0] not in "\n +-":
                raise PatchRejected(f"unexpected line {shown(line.rstrip())!r} in a hunk")
            empty_tail = empty_tail + 1 if line == "\n" else 0
            self._hunk_line(lines)
        return lines[: len(lines) - empty_tail]

    def _hunk_line(self, lines: list[tuple[str, str]]) -> str:
        """Takes one line, with "\\ No newline at end of file" if that follows; returns its sign."""
        line = self._lines[self._at]
        self._at += 1
        # Editors strip the blank of an empty context line.
        sign, content = (" ", "\n") if line == "\n" else (line[0], line[1:])
        if self._peek().startswith("\\ "):
            self._at += 1
            content = content.removesuffix("\n")
        lines.append((sign, content))
        return sign


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
        patch.old = named_file(_unquoted(headers.get(f"{moved} from", "")))
        patch.new = named_file(_unquoted(headers.get(f"{moved} to", "")))
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
    old_path, new_path = (None if name == _NOTHING else named_file(name) for name in (old, new))
    return old_path, new_path


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
