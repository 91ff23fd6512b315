"""What the guest reads, written as polling allows."""

from __future__ import annotations

import os
import select

import pytest

from warmcell.runner.streams import Feed


@pytest.mark.parametrize("order", ["source first", "sink first"])
def test_both_ends_may_be_over_at_the_same_time(order: str) -> None:
    """One look at what is ready can tell that the source has ended and that the guest is gone."""
    source, writes = os.pipe()
    reads, sink = os.pipe()
    poll = select.poll()
    closed: list[int] = []
    feed = Feed(source, sink, lambda: closed.append(sink), poll)
    os.close(writes)
    os.close(reads)
    ready = sorted((descriptor for descriptor, _ in poll.poll(0)), key=lambda number: number == sink)
    assert ready == [source, sink]
    for descriptor in ready if order == "source first" else reversed(ready):
        feed.handle(descriptor)
    assert closed == [sink] and poll.poll(0) == []
    os.close(source)
    os.close(sink)
