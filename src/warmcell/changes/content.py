"""Compares and copies file content by descriptor. Holes are neither read nor filled."""

from __future__ import annotations

import hashlib
import os

from warmcell.core.types import MIB
from warmcell.workspace.copy import copy_ranges, data_ranges
from warmcell.workspace.names import Parts

#: Larger files have no digest; their size and times must do.
MOST_DIGESTED = 64 * MIB
_NO_LIMIT = 1 << 62


def is_same(one: int, other: int) -> bool:
    """Whether two open files have the same content."""
    if os.fstat(one).st_size != os.fstat(other).st_size:
        return False
    parts: Parts = ()
    ranges = [*data_ranges(one, parts, _NO_LIMIT), *data_ranges(other, parts, _NO_LIMIT)]
    return all(_is_same_range(one, other, start, end) for start, end in ranges)


def _is_same_range(one: int, other: int, start: int, end: int) -> bool:
    while start < end:
        size = min(end - start, MIB)
        chunk = os.pread(one, size, start)
        if chunk != os.pread(other, size, start) or not chunk:
            return False
        start += len(chunk)
    return True


def digest(fd: int) -> str:
    """Of the whole content; "" if the file is too large."""
    if os.fstat(fd).st_size > MOST_DIGESTED:
        return ""
    made, at = hashlib.blake2b(digest_size=32), 0
    while chunk := os.pread(fd, MIB, at):
        made.update(chunk)
        at += len(chunk)
    return made.hexdigest()


def digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def read_all(fd: int, most: int) -> bytes | None:
    """The whole content; None if it has more than `most` bytes."""
    data = b""
    while chunk := os.pread(fd, MIB, len(data)):
        data += chunk
        if len(data) > most:
            return None
    return data


def copy(source: int, target: int) -> None:
    """Into an empty file, with the same holes. The ranges are taken once, so that it ends while a guest writes."""
    size = os.fstat(source).st_size
    copy_ranges(source, target, data_ranges(source, (), _NO_LIMIT))
    os.ftruncate(target, size)
