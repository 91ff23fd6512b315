"""Writes changes as a patch for `git apply`."""

from __future__ import annotations

import os
import stat

from warmcell.changes import content, text
from warmcell.changes.detect import Detected, Lower, close, open_upper
from warmcell.changes.upper import UpperDirectory
from warmcell.core.types import MIB

#: The total size of all texts, old and new: a patch is built in memory, where holes of sparse files take space.
MOST_BYTES = 64 * MIB
_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


class PatchWriter:
    def __init__(self, upper: UpperDirectory, lower: Lower) -> None:
        self._upper, self._lower = upper, lower
        self._effort, self._left = text.Effort(), MOST_BYTES

    def write(self, items: list[Detected]) -> bytes:
        """Diffs of text files, up to a limit. Other changes are named without their content."""
        return b"".join(map(self._format_change, items))

    def _format_change(self, item: Detected) -> bytes:
        state = self._lower.stat(item.old_parts or item.parts) if item.change.kind != "added" else None
        old = item.change.old_path or item.change.path
        head = [f"diff --git {quote('a/' + old)} {quote('b/' + item.change.path)}"]
        if item.change.entry in ("directory", "other", "closed"):
            return _lines([*head, f"# {item.change.kind} {item.change.entry}"])
        head += self._modes(item, state)
        if item.change.kind == "renamed":
            names = [f"rename from {quote(old)}", f"rename to {quote(item.change.path)}"]
            return _lines([*head, "similarity index 100%", *names])
        if item.change.kind == "mode":
            return _lines(head)
        before, after = self._before(item, state), self._after(item)
        self._left -= len(before or b"") + len(after or b"")
        is_text = before is not None and after is not None and text.is_text(before) and text.is_text(after)
        if before is None or after is None or not is_text or self._left < 0:
            return _lines([*head, f"Binary files {quote('a/' + old)} and {quote('b/' + item.change.path)} differ"])
        names = ["/dev/null" if state is None else quote("a/" + old)]
        names.append("/dev/null" if item.kind == "deleted" else quote("b/" + item.change.path))
        hunks = text.write_hunks(before, after, self._effort)
        return _lines(head) if not hunks else _lines([*head, f"--- {names[0]}", f"+++ {names[1]}"]) + hunks

    def _modes(self, item: Detected, state: os.stat_result | None) -> list[str]:
        if item.kind == "deleted":
            return [f"deleted file mode {_git_mode(item.mode)}"]
        if state is None:
            return [f"new file mode {_git_mode(item.mode)}"]
        old, new = _git_mode(state.st_mode), _git_mode(item.mode)
        return [] if old == new else [f"old mode {old}", f"new mode {new}"]

    def _before(self, item: Detected, state: os.stat_result | None) -> bytes | None:
        if state is None:
            return b""
        if stat.S_ISLNK(state.st_mode):
            return os.fsencode(self._lower.read_link(item.parts))
        return _read(self._lower.open(item.parts))

    def _after(self, item: Detected) -> bytes | None:
        if item.kind == "deleted":
            return b""
        if item.kind == "symlink":
            return os.fsencode(item.target)
        return _read(open_upper(self._upper, item.parts))


def _read(fd: int | None) -> bytes | None:
    try:
        return None if fd is None else content.read_all(fd, text.MOST_TEXT_BYTES)
    finally:
        close(fd)


def _git_mode(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "120000"
    return "100755" if mode & 0o111 else "100644"


def quote(path: str) -> str:
    """Quote unusual names as git does, so that guests cannot write control characters to a terminal."""
    raw = os.fsencode(path)
    if all(0x20 <= byte < 0x7F and byte not in b'"\\' for byte in raw):
        return path
    try:
        shown = "".join(_ESCAPES.get(char) or (char if char.isprintable() else _octal(char)) for char in raw.decode())
    except UnicodeDecodeError:
        plain = (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}" for byte in raw)
        shown = "".join(_ESCAPES.get(char, char) for char in plain)
    return f'"{shown}"'


def _octal(char: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in char.encode())


def _lines(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape")
