"""The text format of directories in snapshots: names, modes, times and links. Pure module.

The entries, sorted by name, are split into pieces by checksums of names, so that adding a file changes one piece.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from warmcell.core.errors import SnapshotInvalid
from warmcell.workspaces.snapshots.chunks import BLOCK

EntryKind = Literal["file", "directory", "symlink", "hardlink"]
#: Digests of blocks, and for each run of holes the number of blocks.
Blocks = tuple[str | int, ...]
_KINDS: dict[str, EntryKind] = {"f": "file", "d": "directory", "l": "symlink", "h": "hardlink"}
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}
_DIGEST = re.compile(r"[0-9a-f]{48}")
_encode = json.JSONEncoder(separators=(",", ":")).encode
_SPLIT_ONE_IN, _MOST_IN_PIECE = 64, 512
#: The lines of large files list thousands of blocks each: a piece must remain smaller than the largest chunk.
_MOST_PIECE_BYTES = 1 << 22
MAX_SIZE = 1 << 46
_MAX_NAME, _MAX_TARGET = 255, 4096
#: In nanoseconds. The kernel has signed 64-bit seconds.
_MAX_TIME = 2**63 * 10**9


class Entry(NamedTuple):
    """One name. `blocks` is the content of a file, or the pieces of a directory; `target` is that of a link."""

    kind: EntryKind
    name: str
    mode: int = 0
    mtime_ns: int = 0
    size: int = 0
    blocks: Blocks = ()
    target: str = ""


class Line(NamedTuple):
    """An entry as text, with its name."""

    name: str
    text: str


def write_pieces(lines: list[Line]) -> Iterator[bytes]:
    """The pieces of a directory's content."""
    piece: list[str] = []
    size = 0
    for name, text in sorted(lines):
        if piece and size + len(text) > _MOST_PIECE_BYTES:
            yield _join(piece)
            piece, size = [], 0
        piece.append(text)
        size += len(text) + 1
        if len(piece) >= _MOST_IN_PIECE or zlib.crc32(_raw(name)) % _SPLIT_ONE_IN == 0:
            yield _join(piece)
            piece, size = [], 0
    if piece:
        yield _join(piece)


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _join(lines: list[str]) -> bytes:
    return "\n".join(lines).encode("ascii")


def write_line(entry: Entry) -> Line:
    return Line(entry.name, _encode(to_plain(entry)))


def to_plain(entry: Entry) -> list[Any]:
    return [_LETTERS[entry.kind], *entry[1:]]


def read_piece(data: bytes) -> Iterator[Entry]:
    """Parse a piece; `SnapshotInvalid` for anything that `write_pieces` would not write."""
    for line in data.split(b"\n"):
        try:
            plain = json.loads(line)
        except (ValueError, RecursionError):
            raise _invalid("an entry is not JSON") from None
        yield from_plain(plain)


def from_plain(plain: Any) -> Entry:
    if not isinstance(plain, list) or len(plain) != 7 or not isinstance(plain[0], str) or plain[0] not in _KINDS:
        raise _invalid("an entry has an unknown format")
    _, name, mode, mtime_ns, size, blocks, target = plain
    if not _is_text(name) or not _is_text(target):
        raise _invalid("a name is not text")
    are_integers = all(type(number) is int for number in (mode, mtime_ns, size))
    if not are_integers or not 0 <= size <= MAX_SIZE or not -_MAX_TIME <= mtime_ns < _MAX_TIME:
        raise _invalid(f"{name[:80]!r} has a size, mode or time that is out of range")
    entry = Entry(_KINDS[plain[0]], name, mode & 0o777, mtime_ns, size, _blocks(name, blocks), target)
    _check(entry)
    return entry


def _is_text(value: Any) -> bool:
    try:
        return isinstance(value, str) and len(_raw(value)) >= 0
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _blocks(name: str, blocks: Any) -> Blocks:
    if not isinstance(blocks, list):
        raise _invalid(f"{name[:80]!r} has no list of blocks")
    for block in blocks:
        is_hole = type(block) is int and block > 0
        if not is_hole and not (isinstance(block, str) and _DIGEST.fullmatch(block)):
            raise _invalid(f"{name[:80]!r} has a block that is not a digest")
    return tuple(blocks)


def _check(entry: Entry) -> None:
    if entry.kind == "file" and count_blocks(entry.blocks) != -(-entry.size // BLOCK):
        raise _invalid(f"the blocks of {entry.name[:80]!r} do not add up to its size")
    if len(_raw(entry.target)) > _MAX_TARGET or "\0" in entry.target:
        raise _invalid(f"the link {entry.name[:80]!r} has an invalid target")
    if entry.kind in ("symlink", "hardlink") and not entry.target:
        raise _invalid(f"the link {entry.name[:80]!r} has no target")


def check_names(entries: Iterable[Entry]) -> list[Entry]:
    """Check the names in one directory: `SnapshotInvalid` for paths, "." and "..", and duplicates."""
    found = list(entries)
    names = {entry.name for entry in found}
    for name in names:
        if name in ("", ".", "..") or "/" in name or "\0" in name or len(_raw(name)) > _MAX_NAME:
            raise _invalid(f"{name[:80]!r} is not a plain name")
    if len(names) != len(found):
        raise _invalid("a directory has the same name twice")
    return found


def count_blocks(blocks: Blocks) -> int:
    return sum(block if isinstance(block, int) else 1 for block in blocks)


def _invalid(reason: str) -> SnapshotInvalid:
    return SnapshotInvalid(f"the snapshot is invalid: {reason}")
