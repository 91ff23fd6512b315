"""The pages of an instance's memory: which ones a run touches, and having them there before a run needs them.

An instance starts as a private mapping of its module's memory image. Every page is a fault when it is first touched,
and a copy when it is first written; for a short run that is most of its time.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_POPULATE_READ, _POPULATE_WRITE = 22, 23
_IMAGE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) rw-p [0-9a-f]+ \S+ [1-9]", re.MULTILINE)
_ENTRY_BYTES = 8
_PRESENT, _IS_FILE_PAGE = 1 << 63, 1 << 61
_PARTS_AT_ONCE = 16
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Range(NamedTuple):
    """A part of memory, in bytes."""

    start: int
    size: int


class Touched(NamedTuple):
    """Pages that a run wrote to and pages that it only read, counted from the start of the image."""

    written: tuple[Range, ...]
    read: tuple[Range, ...]


def anonymous_bytes() -> int:
    """Memory that is this process's alone: compiled code and images as they were mapped do not count."""
    _, resident, shared, *_ = os.pread(_own_status(), 256, 0).split()
    return (int(resident) - int(shared)) * PAGE_BYTES


@functools.cache
def _own_status() -> int:
    """Kept open: a guest that has used up its descriptors must not keep us from looking."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def images() -> set[Range]:
    """Everything that could be the memory image of an instance; nothing where there is no /proc."""
    try:
        with open("/proc/self/maps", "rb", buffering=0) as file:
            pieces = list(iter(lambda: file.read(1 << 16), b""))
    except OSError:
        return set()
    bounds = ((int(start, 16), int(end, 16)) for start, end in _IMAGE.findall(b"".join(pieces)))
    return {Range(start, end - start) for start, end in bounds}


def new_image(before: set[Range]) -> Range | None:
    """The memory image of the instance that was made since `before`."""
    return max(images() - before, key=lambda image: image.size, default=None)


def look_at(image: Range) -> Touched:
    """What was touched since the image was mapped."""
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(image.start // PAGE_BYTES * _ENTRY_BYTES)
            raw = file.read(image.size // PAGE_BYTES * _ENTRY_BYTES)
    except OSError:
        return Touched((), ())
    present = [(at, entry) for at, (entry,) in enumerate(struct.iter_unpack("=Q", raw)) if entry & _PRESENT]
    return Touched(
        _ranges((at for at, entry in present if not entry & _IS_FILE_PAGE), most_apart=2),
        _ranges((at for at, entry in present if entry & _IS_FILE_PAGE), most_apart=16),
    )


def make_ready(image: Range, touched: Touched, must_stop: Callable[[], bool]) -> None:
    """Changes no byte: pages are mapped, and those that will be written are copied now. Where it fails, they fault."""
    parts = [(part, _POPULATE_WRITE) for part in touched.written] + [(part, _POPULATE_READ) for part in touched.read]
    for at, (part, advice) in enumerate(parts):
        if at % _PARTS_AT_ONCE == 0 and must_stop():
            return
        _madvise(image.start + part.start, part.size, advice)


def _ranges(pages: Iterable[int], most_apart: int) -> tuple[Range, ...]:
    """Neighbours together, even where a few pages lie between them: one call for many is cheaper."""
    runs: list[list[int]] = []
    for page in pages:
        if runs and page - runs[-1][1] <= most_apart:
            runs[-1][1] = page
        else:
            runs.append([page, page])
    return tuple(Range(first * PAGE_BYTES, (last - first + 1) * PAGE_BYTES) for first, last in runs)
