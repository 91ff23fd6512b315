"""Pages of a private mapping: touched pages are found, and populating changes no content."""

from __future__ import annotations

import ctypes
import mmap
import resource
import tempfile
from collections.abc import Iterator

import pytest
from tests.helpers import require
from wasm.pages import PAGE_BYTES, Range, TouchedPages, images, populate, read_touched_pages

PAGES = 64


@pytest.fixture
def image() -> Iterator[tuple[mmap.mmap, Range]]:
    with tempfile.TemporaryFile() as file:
        file.write(b"".join(bytes([page]) * PAGE_BYTES for page in range(PAGES)))
        file.flush()
        mapped = mmap.mmap(file.fileno(), PAGES * PAGE_BYTES, flags=mmap.MAP_PRIVATE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    yield mapped, Range(address, PAGES * PAGE_BYTES)


def test_an_image_is_found_among_the_mappings(image: tuple[mmap.mmap, Range]) -> None:
    assert image[1] in images()


def test_written_and_read_pages_are_distinguished_and_neighbours_merged(image: tuple[mmap.mmap, Range]) -> None:
    mapped, place = image
    for page in (3, 5, 40):
        mapped[page * PAGE_BYTES] = 255
    written = read_touched_pages(place).written
    require(written, "the kernel does not tell which pages are written")
    assert written == (Range(3 * PAGE_BYTES, 3 * PAGE_BYTES), Range(40 * PAGE_BYTES, PAGE_BYTES))


def test_populated_pages_do_not_fault_and_keep_their_content(image: tuple[mmap.mmap, Range]) -> None:
    mapped, place = image
    everything = TouchedPages((Range(0, place.size),), ())
    populate(place, everything, lambda: False)
    require(read_touched_pages(place).written == everything.written, "the kernel cannot populate pages ahead")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for page in range(PAGES):
        mapped[page * PAGE_BYTES + 1] = 255
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < PAGES // 2
    assert [mapped[page * PAGE_BYTES] for page in range(PAGES)] == list(range(PAGES))


def test_it_stops_when_it_must(image: tuple[mmap.mmap, Range]) -> None:
    populate(image[1], TouchedPages((Range(0, image[1].size),), ()), lambda: True)
    assert read_touched_pages(image[1]).written == ()
