"""A cell may display megabytes: what clients get of it is encoded and sent in pieces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from warmcell.interfaces.serve.e2b.interpreter import _encode_lines
from warmcell.interfaces.serve.responses import json_pieces

LONG = 2_000_000


@pytest.mark.parametrize(
    "value",
    [
        "",
        "text",
        "\x01😀\ud800" * LONG,
        {},
        {"a": {"b": "é" * LONG, "c": {}}, "d": [1, {"e": None}]},
        [1.5, True],
        None,
    ],
    ids=["empty", "short", "long", "no fields", "nested", "list", "none"],
)
def test_pieces_are_the_same_json(value: object) -> None:
    assert "".join(json_pieces(value)) == json.dumps(value)


@pytest.mark.attack("S3-17")
async def test_others_get_their_turn_while_a_large_display_is_sent() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def display() -> AsyncIterator[dict[str, Any]]:
        yield {"type": "result", "html": "\x01" * LONG}
        yield {"type": "end_of_execution"}

    counting = asyncio.ensure_future(count_turns())
    pieces = [piece async for piece in _encode_lines(display())]
    counting.cancel()
    assert [json.loads(line)["type"] for line in "".join(pieces).splitlines()] == ["result", "end_of_execution"]
    assert max(map(len, pieces)) < 200_000 and turns > 50
