"""A cancellation at every await of slots, of relayed requests and of input: no slot, task or descriptor is lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.helpers import cancel_at_every_await, open_descriptors

from warmcell.core.errors import SessionBusy
from warmcell.interfaces.serve.front.control import FrontQueue, WorkerSlots
from warmcell.interfaces.serve.front.relay import Peer, relay
from warmcell.interfaces.serve.sandbox_registry import PendingWrites, TypedState, write_to_process
from warmcell.interfaces.serve.service import LOCAL_TENANT, Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.languages.config import ProcessConfig
from warmcell.lifetime.fair_semaphore import FairSemaphore


async def test_a_slot_of_the_service() -> None:
    """Also one for which the client has to wait."""
    service = Service(Settings(queue_timeout=30), ProcessConfig(), queue=FairSemaphore(1, 8))

    async def run() -> str:
        async with service.run_slot(LOCAL_TENANT):
            await asyncio.sleep(0)
            return "ran"

    async def run_beside_another() -> str:
        other = asyncio.ensure_future(run())
        await asyncio.sleep(0)
        try:
            return await run()
        finally:
            await asyncio.wait([other])

    for work in (run, run_beside_another):
        async for cancelled in cancel_at_every_await(work):
            assert (cancelled.result == "ran") is cancelled.is_complete
            assert sum(service._running.values()) == 0 and service.queue.waiting == 0
            async with asyncio.timeout(20):
                assert await run() == "ran"
    await service.aclose()


async def test_a_slot_that_the_front_gives_out() -> None:
    """A worker that gives up at any moment leaves the slot to others, also if the grant was under way."""
    queue = FairSemaphore(1, 8)

    class Line:
        """Delivers messages to the other side a little later."""

        def __init__(self) -> None:
            self.handle: Any = None

        def send(self, message: Any) -> None:
            asyncio.get_running_loop().call_soon(self.handle, message)

    up, down = Line(), Line()
    worker, front = FrontQueue(cast(Any, up)), WorkerSlots(queue, cast(Any, down))
    up.handle, down.handle = front.handle, worker.handle

    async def run() -> str:
        async with worker.slot("t", 1, 30.0):
            await asyncio.sleep(0)
            return "ran"

    async for cancelled in cancel_at_every_await(run):
        assert (cancelled.result == "ran") is cancelled.is_complete
        async with asyncio.timeout(20):
            assert await run() == "ran"
            while not queue.is_idle:
                await asyncio.sleep(0)
        assert worker.waiting == 0
    front.close()


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nright"


class Worker(Peer):
    """A peer that answers every request with `ANSWER`, in two pieces."""

    def __init__(self, path: str) -> None:
        super().__init__("a worker", path)
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ANSWER[:30])
            await asyncio.sleep(0)
            writer.write(ANSWER[30:])
            await reader.read()  # until the front disconnects
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()  # only then is its descriptor closed
            self.connections -= 1


async def test_a_relayed_request(tmp_path: Path) -> None:
    peer = Worker(str(tmp_path / "s"))
    listening = await asyncio.start_unix_server(peer.serve, peer.path)
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "headers": [(b"host", b"a")],
    }

    async def ask() -> bytes:
        sent: list[dict[str, Any]] = []
        first = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            return first.pop() if first else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            await asyncio.sleep(0)
            sent.append(message)

        await relay(cast(Any, peer), scope, receive, send)
        return b"".join(message.get("body", b"") for message in sent)

    assert await ask() == b"right"
    while peer.connections:
        await asyncio.sleep(0.001)
    tasks, descriptors = len(asyncio.all_tasks()), open_descriptors()
    async for cancelled in cancel_at_every_await(ask):
        assert (cancelled.result == b"right") is cancelled.is_complete
        assert peer.active_requests == 0
        assert await ask() == b"right"
        async with asyncio.timeout(20):
            while peer.connections or len(asyncio.all_tasks()) > tasks:
                await asyncio.sleep(0.001)
        assert open_descriptors() <= descriptors
    listening.close()
    await listening.wait_closed()


class Reader:
    """A process that reads once `reads` is set."""

    pid = 7

    def __init__(self) -> None:
        self.reads, self.received = asyncio.Event(), b""

    async def write(self, data: bytes) -> None:
        await self.reads.wait()
        await asyncio.sleep(0)
        self.received += data


async def test_input_of_a_process() -> None:
    """What was written stays in order and whole; an abandoned write is not followed by the next before it is read."""
    entry = cast(Any, SimpleNamespace(state=TypedState()))
    pending = entry.state.get(PendingWrites, PendingWrites)
    number = 0

    async for cancelled in cancel_at_every_await(lambda: write_slowly(entry)):
        number += 1
        process, _ = cancelled.result or (None, None)
        assert (process is not None) is cancelled.is_complete
        async with asyncio.timeout(20):
            while pending:
                for writer in writers:
                    writer.reads.set()
                await asyncio.sleep(0)
        assert all(writer.received in (b"", b"first", b"firstsecond") for writer in writers)
        writers.clear()
    assert number > 2


writers: list[Reader] = []


async def write_slowly(entry: Any) -> tuple[Reader, bytes]:
    process = Reader()
    writers.append(process)
    first = asyncio.ensure_future(write_to_process(entry, cast(Any, process), b"first"))
    await asyncio.sleep(0)
    with pytest.raises(SessionBusy):
        await write_to_process(entry, cast(Any, process), b"refused")
    asyncio.get_running_loop().call_soon(process.reads.set)
    try:
        await write_to_process(entry, cast(Any, process), b"second", wait=True)
    finally:
        process.reads.set()
        await asyncio.wait([first])
    assert process.received == b"firstsecond"
    return process, process.received
