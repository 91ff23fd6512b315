"""Line differences and three-way merges. Pure module.

Guests choose the texts, so the work is bounded: if two texts differ in too many lines, or the budget for all texts is
spent, everything between their common beginning and end counts as one difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import NamedTuple

#: The most differing lines between two texts; time and memory grow with its square.
_MOST_EDITS = 600
_MOST_STEPS = 5_000_000
#: Larger files do not count as text.
MOST_TEXT_BYTES = 1 << 20
_CONTEXT = 3


class Effort:
    """A budget of steps for all texts of one caller."""

    def __init__(self) -> None:
        self._left = _MOST_STEPS

    def spend(self, steps: int) -> bool:
        """False if the budget is exceeded."""
        self._left -= steps
        return self._left >= 0


class Block(NamedTuple):
    """Lines `a .. a + size` of one text equal lines `b .. b + size` of the other."""

    a: int
    b: int
    size: int


def is_text(data: bytes) -> bool:
    """Git's rule, no NUL byte near the beginning, and not too large."""
    return len(data) <= MOST_TEXT_BYTES and b"\0" not in data[:8000]


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their ends; only a newline ends a line."""
    return BytesIO(data).readlines()


def common_blocks(a: Sequence[bytes], b: Sequence[bytes], effort: Effort) -> list[Block]:
    """The blocks of common lines, in order, followed by an empty block at the end of both texts."""
    start, end = 0, 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    inner = _longest_path(a[start : len(a) - end], b[start : len(b) - end], effort)
    blocks = [Block(0, 0, start), *(Block(x + start, y + start, size) for x, y, size in inner)]
    blocks += [Block(len(a) - end, len(b) - end, end), Block(len(a), len(b), 0)]
    return [block for block in blocks[:-1] if block.size] + blocks[-1:]


def _longest_path(a: Sequence[bytes], b: Sequence[bytes], effort: Effort) -> list[Block]:
    """Myers' algorithm: the furthest point on each diagonal, for a growing number of edits."""
    furthest = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(min(len(a) + len(b), _MOST_EDITS) + 1 if a and b else 0):
        if not effort.spend(edits + 1):
            break
        history.append(dict(furthest))
        for k in range(-edits, edits + 1, 2):
            is_down = k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1])
            x = furthest[k + 1] if is_down else furthest[k - 1] + 1
            while x < len(a) and x - k < len(b) and a[x] == b[x - k]:
                x += 1
            furthest[k] = x
            if x >= len(a) and x - k >= len(b):
                return _walk_back(history, len(a), len(b))
    return []


def _walk_back(history: list[dict[int, int]], x: int, y: int) -> list[Block]:
    blocks: list[Block] = []
    for edits in range(len(history) - 1, -1, -1):
        furthest, k = history[edits], x - y
        is_down = k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1])
        before = k + 1 if is_down else k - 1
        from_x = furthest[before] if edits else 0
        start_x = (from_x if is_down else from_x + 1) if edits else 0
        if x > start_x:
            blocks.append(Block(start_x, start_x - k, x - start_x))
        x, y = from_x, from_x - before
    return blocks[::-1]


def merge(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Merge both sides' changes to `base`; None if they touch the same or adjacent lines."""
    if not all(map(is_text, (base, ours, theirs))):
        return None
    lines, mine, other = split_lines(base), split_lines(ours), split_lines(theirs)
    effort = Effort()
    edits = sorted(
        [*_edits(lines, mine, effort), *_edits(lines, other, effort)], key=lambda edit: (edit.start, edit.end)
    )
    merged: list[bytes] = []
    at = 0
    last: _Edit | None = None
    for edit in edits:
        if last is not None and edit == last:  # both made the same change
            continue
        if last is not None and edit.start <= last.end:
            return None
        merged += [*lines[at : edit.start], *edit.lines]
        at, last = edit.end, edit
    return b"".join([*merged, *lines[at:]])


class _Edit(NamedTuple):
    """Replace lines `start .. end` of the base by `lines`."""

    start: int
    end: int
    lines: tuple[bytes, ...]


def _edits(base: list[bytes], changed: list[bytes], effort: Effort) -> Iterator[_Edit]:
    for gap in _gaps(common_blocks(base, changed, effort)):
        yield _Edit(gap.a, gap.a_end, tuple(changed[gap.b : gap.b_end]))


def write_hunks(before: bytes, after: bytes, effort: Effort) -> bytes:
    """The hunks of a unified diff, without a header."""
    a, b = split_lines(before), split_lines(after)
    return b"".join(_hunk(a, b, group) for group in _groups(_gaps(common_blocks(a, b, effort))))


class _Gap(NamedTuple):
    """Lines `a .. a_end` of one text correspond to the different lines `b .. b_end` of the other."""

    a: int
    a_end: int
    b: int
    b_end: int


def _gaps(blocks: list[Block]) -> Iterator[_Gap]:
    a = b = 0
    for block in blocks:
        if block.a > a or block.b > b:
            yield _Gap(a, block.a, b, block.b)
        a, b = block.a + block.size, block.b + block.size


def _groups(gaps: Iterator[_Gap]) -> Iterator[list[_Gap]]:
    """Gaps whose contexts touch belong to one hunk."""
    group: list[_Gap] = []
    for gap in gaps:
        if group and gap.a - group[-1].a_end > 2 * _CONTEXT:
            yield group
            group = []
        group.append(gap)
    if group:
        yield group


def _hunk(a: list[bytes], b: list[bytes], group: list[_Gap]) -> bytes:
    start, end = max(0, group[0].a - _CONTEXT), min(len(a), group[-1].a_end + _CONTEXT)
    lines: list[bytes] = []
    at = start
    for gap in group:
        lines += [b" " + line for line in a[at : gap.a]]
        lines += [b"-" + line for line in a[gap.a : gap.a_end]]
        lines += [b"+" + line for line in b[gap.b : gap.b_end]]
        at = gap.a_end
    lines += [b" " + line for line in a[at:end]]
    first = group[0].b - (group[0].a - start)
    removed = end - start
    added = removed + sum((gap.b_end - gap.b) - (gap.a_end - gap.a) for gap in group)
    header = f"@@ -{_range(start, removed)} +{_range(first, added)} @@\n".encode()
    return header + b"".join(map(_with_end, lines))


def _range(start: int, count: int) -> str:
    return f"{start + 1 if count else start},{count}" if count != 1 else str(start + 1)


def _with_end(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
