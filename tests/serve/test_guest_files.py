"""What a guest says in the name of its file server: bounded, read once, and nothing that nobody asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

import pytest

from warmcell.core.output_events import OutputEvent
from warmcell.interfaces.serve.e2b import box


class Says:
    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces

    async def output(self) -> AsyncIterator[OutputEvent]:
        for piece in self._pieces:
            yield OutputEvent("stdout", piece)


async def lines_of(pieces: Iterable[bytes]) -> list[bytes | None]:
    files = box.GuestFiles(cast(Any, None))
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    await files._read(cast(Any, Says(pieces)), lines)
    return [lines.get_nowait() for _ in range(lines.qsize())]


async def test_a_line_may_come_byte_by_byte() -> None:
    assert await lines_of([b"{", b'"a"', b": 1}", b"\n"]) == [b'{"a": 1}', None]


@pytest.mark.attack("S2-35")
@pytest.mark.parametrize(
    "pieces", [[b"1\n2\n"], [b"1\n", b"2\n"], [b"1\n" + b"x" * (box.MAX_LINE + 1)]], ids=["at once", "unasked", "long"]
)
async def test_what_nobody_asked_for_is_the_end(pieces: list[bytes]) -> None:
    found = await lines_of([*pieces, *[b"more\n"] * 1000])
    assert len(found) <= 3 and found[-1] is None


@pytest.mark.attack("S2-35")
async def test_a_long_line_in_little_pieces_costs_no_more_than_its_length() -> None:
    loop = asyncio.get_running_loop()
    times = []
    for count in (20_000, 200_000):
        started = loop.time()
        await lines_of(b"x" for _ in range(count))
        times.append(loop.time() - started)
    assert times[1] < 60 * times[0]  # ten times as much; a hundred if each piece were to look at all before it
