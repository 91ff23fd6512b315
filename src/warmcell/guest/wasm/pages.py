"""The pages of an instance's memory: which ones a run touches, and mapping them before a run needs them.

An instance starts as a private mapping of its module's memory image. The first access to a page is a fault, the first
write a copy; for a short run that is most of its time.
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


class TouchedPages(NamedTuple):
    """Pages that a run wrote and pages that it only read, as offsets into the image."""

    written: tuple[Range, ...]
    read: tuple[Range, ...]


def anonymous_bytes() -> int:
    """This process's private memory, without compiled code and unmodified images."""
    _, resident, shared, *_ = os.pread(_own_status(), 256, 0).split()
    return (int(resident) - int(shared)) * PAGE_BYTES


@functools.cache
def _own_status() -> int:
    """Kept open, so that it can be read when a guest has used up all descriptors."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def images() -> set[Range]:
    """Every mapping that could be the memory image of an instance; empty without /proc."""
    try:
        with open("/proc/self/maps", "rb", buffering=0) as file:
            pieces = list(iter(lambda: file.read(1 << 16), b""))
    except OSError:
        return set()
    bounds = ((int(start, 16), int(end, 16)) for start, end in _IMAGE.findall(b"".join(pieces)))
    return {Range(start, end - start) for start, end in bounds}


def new_image(before: set[Range]) -> Range | None:
    """The memory image of the instance made since `before`."""
    return max(images() - before, key=lambda image: image.size, default=None)


def read_touched_pages(image: Range) -> TouchedPages:
    """The pages touched since the image was mapped."""
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(image.start // PAGE_BYTES * _ENTRY_BYTES)
            raw = file.read(image.size // PAGE_BYTES * _ENTRY_BYTES)
    except OSError:
        return TouchedPages((), ())
    present = [(at, entry) for at, (entry,) in enumerate(struct.iter_unpack("=Q", raw)) if entry & _PRESENT]
    return TouchedPages(
        _ranges((at for at, entry in present if not entry & _IS_FILE_PAGE), most_apart=2),
        _ranges((at for at, entry in present if entry & _IS_FILE_PAGE), most_apart=16),
    )


def populate(image: Range, touched: TouchedPages, must_stop: Callable[[], bool]) -> None:
    """Maps pages, and copies those that will be written; no content changes. Where it fails, the pages fault later."""
    parts = [(part, _POPULATE_WRITE) for part in touched.written] + [(part, _POPULATE_READ) for part in touched.read]
    for at, (part, advice) in enumerate(parts):
        if at % _PARTS_AT_ONCE == 0 and must_stop():
            return
        _madvise(image.start + part.start, part.size, advice)


def _ranges(pages: Iterable[int], most_apart: int) -> tuple[Range, ...]:
    """Merges neighbours, even with a small gap between them: one call for many pages is cheaper."""
    runs: list[list[int]] = []
    for page in pages:
        if runs and page - runs[-1][1] <= most_apart:
            runs[-1][1] = page
        else:
            runs.append([page, page])
    return tuple(Range(first * PAGE_BYTES, (last - first + 1) * PAGE_BYTES) for first, last in runs)
