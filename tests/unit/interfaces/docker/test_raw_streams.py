"""Clients of `attach` and `exec` that go away; the lines of `logs`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.helpers import PATIENCE

from warmcell.core.output_events import OutputEvent
from warmcell.interfaces.docker import output_log


class Client:
    """Sends some input and hangs up."""

    def __init__(self) -> None:
        self.is_gone = asyncio.Event()

    async def read(self) -> bytes:
        return b"input"

    async def write(self, data: bytes) -> None: ...

    async def wait_for_hangup(self) -> None:
        await self.is_gone.wait()


class Process:
    """Reads no input, or the first piece only when it is allowed to."""

    def __init__(self) -> None:
        self.may_read = asyncio.Event()
        self.begun = asyncio.Event()
        self.taken = b""

    async def write(self, data: bytes) -> None:
        self.begun.set()
        await self.may_read.wait()
        self.may_read.clear()
        self.taken += data


async def silence() -> AsyncIterator[OutputEvent]:
    await asyncio.Event().wait()
    yield OutputEvent("stdout", b"")


async def start(client: Any, process: Any) -> asyncio.Task[None]:
    copying = output_log.copy_streams(client, silence(), process, has_tty=False, is_input=True, closes_input=True)
    task = asyncio.create_task(copying)
    await process.begun.wait()
    return task


async def test_a_client_that_is_gone_is_noticed_while_its_input_is_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_log, "_LAST_INPUT_SECONDS", 0.01)
    client, process = Client(), Process()
    copying = await start(client, process)
    client.is_gone.set()
    await asyncio.wait_for(copying, PATIENCE)
    assert process.taken == b""


async def test_a_program_gets_the_last_input_of_a_client_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_log, "_LAST_INPUT_SECONDS", PATIENCE)
    client, process = Client(), Process()
    copying = await start(client, process)
    client.is_gone.set()
    await asyncio.sleep(0)
    client.read = lambda: asyncio.sleep(0, b"")  # type: ignore[method-assign,assignment]
    process.may_read.set()
    process.close_stdin = lambda: asyncio.sleep(0)  # type: ignore[attr-defined]
    await asyncio.wait_for(copying, PATIENCE)
    assert process.taken == b"input"


async def test_a_line_that_arrives_in_pieces_is_one_line() -> None:
    """It was several: `tail` returned half of it, and `timestamps` had a time in the middle."""
    log = output_log.OutputLog()
    log.open()
    for stream, data in (("stdout", b"one\ntw"), ("stderr", b"er"), ("stdout", b"o\n50%\r100%\n"), ("stdout", b"end")):
        log.add(stream, data)

    async def read(tail: int) -> list[tuple[str, bytes]]:
        return [piece async for piece in log.read(output_log.LogQuery(stdout=True, stderr=True, tail=tail))]

    assert await read(-1) == [("stdout", b"one\n"), ("stdout", b"two\n"), ("stdout", b"50%\r100%\n")]
    assert await read(2) == [("stdout", b"two\n"), ("stdout", b"50%\r100%\n")]
    log.close()
    assert sorted((await read(-1))[3:]) == [("stderr", b"er"), ("stdout", b"end")]
    log.add("stdout", b"x" * output_log._MAX_PARTIAL)
    assert (await read(1))[0][1].startswith(b"xx")
