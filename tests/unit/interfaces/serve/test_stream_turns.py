"""Many streams of one tenant and the other requests of the same event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from warmcell.interfaces.serve.e2b.connect import LastMessages, MessageStream, parse_envelopes
from warmcell.interfaces.serve.event_streams import EventStream, StreamTurns
from warmcell.interfaces.serve.requests import OWNER

STREAMS = 100


async def test_streams_that_have_news_at_once_do_not_all_send_in_one_iteration() -> None:
    loop, is_ready, sent = asyncio.get_running_loop(), asyncio.Event(), Counter[int]()
    iteration = 0

    def count() -> None:
        nonlocal iteration
        iteration += 1
        loop.call_soon(count)

    async def events() -> AsyncIterator[str]:
        await is_ready.wait()
        yield "news"

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        if message.get("body") == b"news":
            sent[iteration] += 1

    scope = {"type": "http", OWNER: "one"}
    streams = [asyncio.create_task(EventStream(events())(scope, receive, send)) for _ in range(STREAMS)]
    await asyncio.sleep(0)
    loop.call_soon(count)
    is_ready.set()
    await asyncio.gather(*streams)
    assert sum(sent.values()) == STREAMS
    assert max(sent.values()) <= 4


async def test_owners_take_turns_and_streams_that_ended_take_none() -> None:
    turns, order = StreamTurns(), list[str]()

    async def send(owner: str) -> None:
        await turns.wait(owner)
        order.append(owner)

    many = [asyncio.create_task(send("many")) for _ in range(STREAMS)]
    late = asyncio.create_task(send("few"))
    await asyncio.sleep(0)
    many[-1].cancel()
    await asyncio.gather(*many[:-1], late)
    assert order.index("few") < 6
    assert order.count("many") == STREAMS - 1


async def test_a_long_batch_is_sent_in_pieces() -> None:
    """All events of a watched directory, up to 32 MiB, were encoded and sent in one iteration of the event loop."""
    turns, sent = 0, list[dict[str, Any]]()
    batch = [{"filesystem": {"name": "x" * 1000}}] * 1000

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def batches() -> AsyncIterator[list[Any]]:
        yield batch
        yield LastMessages(batch)

    async def begin() -> AsyncIterator[list[Any]]:
        return batches()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    counting = asyncio.ensure_future(count_turns())
    await MessageStream(begin())({OWNER: "one"}, asyncio.Event().wait, send)
    counting.cancel()
    bodies = [message["body"] for message in sent[1:]]
    assert parse_envelopes(b"".join(bodies)) == batch * 2
    assert max(map(len, bodies)) < 100_000 and turns > 10
    assert [message.get("more_body", False) for message in sent[1:]] == [True] * (len(bodies) - 1) + [False]
