"""Messages of a guest's file server are bounded, read once, and accepted only as answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

import pytest

from warmcell.core.output_events import OutputEvent
from warmcell.interfaces.serve.e2b import guest_files
from warmcell.interfaces.serve.e2b.connect import RpcError
from warmcell.interfaces.serve.e2b.guest_files import FileService


class FakeProcess:
    """Writes what a test puts in `says`; takes requests while `is_reading`."""

    def __init__(self, pieces: Iterable[bytes] = ()) -> None:
        self.says: asyncio.Queue[bytes] = asyncio.Queue()
        for piece in pieces:
            self.says.put_nowait(piece)
        self.local, self.requests, self.is_running = self, list[dict[str, Any]](), True
        self.is_reading = asyncio.Event()
        self.is_reading.set()

    async def output(self) -> AsyncIterator[OutputEvent]:
        while self.is_running:
            yield OutputEvent("stdout", await self.says.get())

    async def write(self, line: bytes) -> None:
        await self.is_reading.wait()
        self.requests.append(json.loads(line))

    def kill_soon(self) -> None:
        self.is_running = False


async def start(pieces: Iterable[bytes] = ()) -> tuple[FakeProcess, FileService]:
    process = FakeProcess(pieces)
    return process, FileService(cast(Any, process))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_line_may_come_byte_by_byte() -> None:
    process, service = await start()
    request = asyncio.ensure_future(service.request({"op": "x"}))
    await settle()
    for byte in b'{"id": 1, "a": 1}\n':
        process.says.put_nowait(bytes([byte]))
    assert await request == {"a": 1}


@pytest.mark.attack("S3-05")
async def test_the_answer_to_an_abandoned_request_is_dropped() -> None:
    process, service = await start()
    abandoned = asyncio.ensure_future(service.request({"op": "first"}))
    await settle()
    abandoned.cancel()
    second = asyncio.ensure_future(service.request({"op": "second"}))
    await settle()
    process.says.put_nowait(b'{"id": 1, "data": "first"}\n{"id": 2, "data": "second"}\n')
    assert await second == {"data": "second"}
    assert service.is_running


async def test_a_request_does_not_follow_half_a_line() -> None:
    process, service = await start()
    process.is_reading.clear()
    abandoned = asyncio.ensure_future(service.request({"op": "first"}))
    await settle()
    abandoned.cancel()
    second = asyncio.ensure_future(service.request({"op": "second"}))
    await settle()
    assert process.requests == []
    process.is_reading.set()
    await settle()
    assert [request["op"] for request in process.requests] == ["first", "second"]
    second.cancel()


async def test_a_stopped_service_is_killed_even_if_its_callers_have_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_files, "FILE_SECONDS", 0.05)
    process, service = await start()
    abandoned = asyncio.ensure_future(service.request({"op": "first"}))
    await settle()
    abandoned.cancel()
    await asyncio.sleep(0.2)
    assert not process.is_running and not service.is_running


@pytest.mark.attack("S2-35")
@pytest.mark.parametrize(
    "piece",
    [b'{"id": 7}\n', b"1\n", b"{\n", b'{"id": [1]}\n', b"x" * (guest_files.MAX_LINE + 1)],
    ids=["unknown id", "not an object", "not JSON", "not a number", "too long"],
)
async def test_a_message_that_is_not_an_answer_ends_the_service(piece: bytes) -> None:
    process, service = await start([piece, *[b"more\n"] * 1000])
    with pytest.raises(RpcError, match="the file service exited"):
        await service.request({"op": "x"})
    assert process.says.qsize() > 900 and not process.is_running


@pytest.mark.attack("S2-35")
async def test_a_long_line_in_little_pieces_costs_no_more_than_its_length() -> None:
    times = []  # of the processor: others may delay this thread
    for count in (20_000, 200_000):
        started = time.thread_time()
        _, service = await start([b"x"] * count + [b"\n"])
        await asyncio.wait([service._reading])
        times.append(time.thread_time() - started)
    assert times[1] < 60 * times[0]  # ten times as much; a hundred if each piece looked at all before it
