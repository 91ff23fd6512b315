"""Interrupts that reach a server before the cell that they are for has started, and answers before their question."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from warmcell.interfaces.client.http_sandbox import HttpSession
from warmcell.interfaces.serve.responses import outcome_to_dict
from warmcell.interfaces.serve.v1.sandbox_state import SessionEntry
from warmcell.interfaces.serve.v1.sessions import cell_callbacks
from warmcell.sandbox.interface import NO_CALLBACKS
from warmcell.sessions.cell_results import CellError, CellResult


class Session:
    """Counts the interrupts that reach the interpreter."""

    def __init__(self) -> None:
        self.interrupts = 0

    async def interrupt(self) -> bool:
        self.interrupts += 1
        return False


async def test_the_first_cell_that_waits_is_interrupted_and_the_others_go_on() -> None:
    session = Session()
    entry: Any = SessionEntry(session)  # type: ignore[arg-type]
    room, order = asyncio.Event(), []

    @asynccontextmanager
    async def slot() -> AsyncIterator[None]:
        await room.wait()
        yield

    async def cell(name: str) -> None:
        async with entry.cell_slot(slot()) as is_granted:
            order.append((name, is_granted))

    assert await entry.interrupt() is False and session.interrupts == 1
    cells = [asyncio.create_task(cell(name)) for name in ("first", "second", "third")]
    await asyncio.sleep(0)
    assert [await entry.interrupt() for _ in range(2)] == [True, True]
    await asyncio.gather(*cells[:2])
    assert order == [("first", False), ("second", False)] and session.interrupts == 1
    room.set()
    await cells[2]
    assert order[2] == ("third", True)
    assert await entry.interrupt() is False and session.interrupts == 2


async def test_an_interrupt_is_for_the_cell_that_runs_before_those_that_wait() -> None:
    session = Session()
    entry: Any = SessionEntry(session)  # type: ignore[arg-type]

    @asynccontextmanager
    async def slot() -> AsyncIterator[None]:
        yield

    async with entry.cell_slot(slot()) as is_granted:
        assert is_granted
        await entry.interrupt()
    assert session.interrupts == 1


async def test_an_interrupt_that_comes_with_the_slot_is_not_lost() -> None:
    """After a pause of the event loop both are handled at once: the client was told so, and the cell ran."""
    session = Session()
    entry: Any = SessionEntry(session)  # type: ignore[arg-type]
    room, grants = asyncio.Event(), list[bool]()

    @asynccontextmanager
    async def slot() -> AsyncIterator[None]:
        await room.wait()
        yield

    async def cell() -> None:
        async with entry.cell_slot(slot()) as is_granted:
            grants.append(is_granted)

    running = asyncio.create_task(cell())
    await asyncio.sleep(0)
    room.set()
    assert await entry.interrupt() is True
    await running
    assert grants == [False] and session.interrupts == 0
    assert await entry.interrupt() is False and session.interrupts == 1


class Endpoint:
    """A server that the interrupt reaches before the cell."""

    def __init__(self) -> None:
        self.asked = 0
        self.interrupted = asyncio.Event()

    async def request(self, method: str, route: str, **_: object) -> dict[str, Any]:
        if route.endswith("/run"):
            await self.interrupted.wait()
            return outcome_to_dict(CellResult(error=CellError("KeyboardInterrupt", "")))
        self.asked += 1
        if self.asked == 3:
            self.interrupted.set()
        return {"interrupted": self.asked >= 3}


async def test_a_client_asks_again_until_its_cell_is_interrupted() -> None:
    endpoint: Any = Endpoint()
    session = HttpSession(endpoint, {"id": "s", "language": "python"}, lambda _: endpoint)
    assert await session.interrupt() is False
    cell = asyncio.create_task(session.run("while True: pass", 60, NO_CALLBACKS))
    await asyncio.sleep(0)
    assert await session.interrupt() is True and endpoint.asked >= 3
    error = (await cell).error
    assert error is not None and error.name == "KeyboardInterrupt"


async def test_a_client_asks_no_more_when_its_cell_has_ended() -> None:
    class Deaf(Endpoint):
        async def request(self, method: str, route: str, **_: object) -> dict[str, Any]:
            self.interrupted.set()
            return await super().request(method, route) if route.endswith("/run") else {"interrupted": False}

    endpoint: Any = Deaf()
    session = HttpSession(endpoint, {"id": "s", "language": "python"}, lambda _: endpoint)
    cell = asyncio.create_task(session.run("1", 60, NO_CALLBACKS))
    assert await session.interrupt() is False
    await cell


async def test_an_answer_that_comes_before_the_question_was_sent() -> None:
    """The question waits for a client that reads slowly, and another request answers it meanwhile."""
    entry: Any = SessionEntry(Session())  # type: ignore[arg-type]
    room = asyncio.Event()

    async def emit(name: str, data: object) -> None:
        await room.wait()

    asking = asyncio.ensure_future(cell_callbacks(entry, emit, True)["on_input"]("? "))
    await asyncio.sleep(0)
    question, entry.question = entry.question, None  # as `type_input` takes it
    question.set_result("an answer")
    room.set()
    assert await asking == "an answer"
