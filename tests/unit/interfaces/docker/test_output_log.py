"""Logs of containers that print short lines without end."""

from __future__ import annotations

import asyncio

import pytest

from warmcell.interfaces.docker import output_log
from warmcell.interfaces.docker.output_log import MAX_LOG_BYTES, LogEntry, LogQuery, OutputLog

QUERY = LogQuery(stdout=True, stderr=True)


def test_lines_that_cannot_be_kept_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of them held up all other requests for a second."""
    made: list[LogEntry] = []

    def record(*fields: object) -> LogEntry:
        made.append(LogEntry(*fields))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(output_log, "LogEntry", record)
    log = OutputLog()
    log.add("stdout", b"first\n")
    log.add("stdout", b"\n" * 100_000 + b"last\n")
    assert len(made) <= MAX_LOG_BYTES // 200 + 2
    assert [log._entries[0].data, log._entries[-1].data] == [b"\n", b"last\n"]


@pytest.mark.parametrize("is_followed", [False, True])
async def test_others_get_their_turn_while_many_lines_are_read(is_followed: bool) -> None:
    turns, log = 0, OutputLog()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    for number in range(10_000):
        log.add("stdout", b"%d\n" % number)
    counting = asyncio.ensure_future(count_turns())
    query = LogQuery(stdout=True, stderr=True, is_followed=True, tail=0) if is_followed else QUERY
    reading = log.read(query)
    if is_followed:
        log.open()
        first = asyncio.ensure_future(anext(reading))
        await asyncio.sleep(0)
        for number in range(10_000):
            log.add("stdout", b"%d\n" % number)
        log.close()
        found = [await first] + [line async for line in reading]
    else:
        found = [line async for line in reading]
    counting.cancel()
    assert [data for _, data in found] == [b"%d\n" % number for number in range(10_000)]
    assert turns > 50
