"""A cell may display megabytes: what clients get of it is encoded and sent in pieces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.interfaces.serve.e2b.envd import UNARY
from warmcell.interfaces.serve.e2b.interpreter import _encode_lines, _run
from warmcell.interfaces.serve.event_streams import event_chunks, format_event
from warmcell.interfaces.serve.responses import json_pieces, outcome_response
from warmcell.sessions.cell_results import CellResult

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
        [{"a": "x" * LONG}, 1, {}, []],
        None,
    ],
    ids=["empty", "short", "long", "no fields", "nested", "list", "objects", "none"],
)
def test_pieces_are_the_same_json(value: object) -> None:
    assert "".join(json_pieces(value)) == json.dumps(value)


@pytest.mark.attack("S3-17")
async def test_others_get_their_turn_while_many_short_outputs_are_sent() -> None:
    """The outputs of a thousand cases, 32 MiB together, were encoded at once if each was short."""
    turns, sent = 0, list[dict[str, Any]]()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    outcome = {"verdicts": [{"result": {"stdout": "\x01" * 10_000}}] * 1000}
    counting = asyncio.ensure_future(count_turns())
    await outcome_response(outcome)({"type": "http"}, None, send)  # type: ignore[arg-type]
    counting.cancel()
    assert json.loads(b"".join(message["body"] for message in sent[1:])) == outcome
    assert turns > 50 and max(len(message["body"]) for message in sent[1:]) < 200_000


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


@pytest.mark.attack("S3-17")
@pytest.mark.parametrize("text", ["\x01" * LONG, "short"])
async def test_others_get_their_turn_while_a_large_output_is_sent(text: str) -> None:
    turns, sent = 0, list[dict[str, Any]]()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    outcome = {"status": "success", "stdout": text, "cases": [{"stdout": text}]}
    counting = asyncio.ensure_future(count_turns())
    await outcome_response(outcome)({"type": "http"}, None, send)  # type: ignore[arg-type]
    counting.cancel()
    body = b"".join(message["body"] for message in sent[1:])
    assert json.loads(body) == outcome
    assert int(dict(sent[0]["headers"])[b"content-length"]) == len(body)
    assert [message.get("more_body", False) for message in sent[1:]] == [True] * (len(sent) - 2) + [False]
    assert turns > 50 or text == "short"
    chunks = list(event_chunks("result", outcome))
    assert "".join(chunks) == format_event("result", outcome) and max(map(len, chunks)) < 200_000


@pytest.mark.attack("S3-17")
async def test_others_get_their_turn_while_command_lines_are_listed() -> None:
    """What `Process/List` keeps of the programs of one sandbox, 8 MiB, was encoded at once."""
    turns, sent = 0, list[dict[str, Any]]()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    config = {"cmd": "x", "args": ["\x01" * 100_000] * 20}
    command = SimpleNamespace(config=config, tag="name", process=SimpleNamespace(pid=7))
    box: Any = SimpleNamespace(running_commands=lambda: [command])
    answer: Any = await UNARY["process.Process/List"](box, {})
    counting = asyncio.ensure_future(count_turns())
    await answer({"type": "http"}, None, send)
    counting.cancel()
    assert json.loads(b"".join(message["body"] for message in sent[1:])) == {
        "processes": [{"config": config, "pid": 7, "tag": "name"}]
    }
    assert turns > 50 and max(len(message["body"]) for message in sent[1:]) < 200_000


@pytest.mark.attack("S3-17")
async def test_a_cell_waits_for_a_client_that_takes_nothing() -> None:
    """A cell that clears what it has printed may print for ever."""
    printed = 0

    async def run(code: str, env: dict[str, str], on_stdout: Callable[[str], Awaitable[None]], **_: Any) -> CellResult:
        nonlocal printed
        while printed < 1000:
            await on_stdout("x")
            printed += 1
        return CellResult()

    context: Any = SimpleNamespace(run=run)
    events = _run(context, "", {})
    assert (await anext(events))["type"] == "stdout"
    for _ in range(2000):
        await asyncio.sleep(0)
    assert printed < 50
    rest = [event["type"] async for event in events]
    assert rest.count("stdout") == 999 and rest[-1] == "end_of_execution"
