"""Runs that are alone on their node: one call of the actor, which returns the answer."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from tests.unit.backends.stand_in_nodes import LocalTransport, ScriptedBackend, StandInNodes

from warmcell import ExecRequest
from warmcell.backends.fake import FakeGuest
from warmcell.backends.ray import node_service
from warmcell.backends.ray.node_service import NodeService
from warmcell.lifetime.portal import portal

REQUEST = ExecRequest("python", "print(1)", 20)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of actors, except for those that wait for messages."""
    made: list[str] = []

    def note(name: str) -> None:
        method = getattr(LocalTransport, name)

        async def call(self: LocalTransport, payload: bytes) -> Any:
            made.append(name)
            return await method(self, payload)

        monkeypatch.setattr(LocalTransport, name, call)

    for name in ("submit", "ask"):
        note(name)
    return made


def test_a_run_that_is_alone_is_one_call(calls: list[str]) -> None:
    with StandInNodes("a").backend() as backend:
        for _ in range(3):
            assert backend.execute_blocking(REQUEST).stdout == "a"
        assert calls == ["ask"] * 3
        with backend.build_blocking(REQUEST) as program:
            calls.clear()
            assert program.run_blocking().stdout == "a"
            assert calls == ["ask"]


def test_output_is_streamed_by_messages(calls: list[str]) -> None:
    nodes = StandInNodes("a", answer=lambda _, request: FakeGuest(stdout="one", seconds=0))
    with nodes.backend() as backend:
        *output, last = backend.stream_blocking(REQUEST)
        assert b"".join(event.data for event in output) == b"one" and last.result.stdout == "one"
        assert "ask" not in calls


def test_runs_beside_another_share_their_calls(calls: list[str]) -> None:
    async def run_four() -> list[str]:
        return [result.stdout for result in await asyncio.gather(*(backend.execute(REQUEST) for _ in range(4)))]

    with StandInNodes("a").backend() as backend:
        backend.nodes()
        assert portal.call(run_four) == ["a"] * 4  # on the link's own loop: all of them start before the first ends
        assert calls == ["ask", "submit"] or calls == ["submit", "ask"]


class HeldBackend(ScriptedBackend):
    """Its runs end when they may, or are cancelled."""

    def __init__(self) -> None:
        super().__init__(lambda _: "done", 4)
        self.may_end, self.is_cancelled = asyncio.Event(), False

    async def execute(self, request: ExecRequest, **options: Any) -> Any:
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        return await super().execute(request, **options)


def pack(order: int, *message: Any) -> bytes:
    return pickle.dumps((order, [pickle.dumps(message)]))


async def take_answer(service: NodeService) -> Any:
    while not (batch := pickle.loads(await service.take())):
        pass
    (message,) = batch
    return pickle.loads(message)


async def test_the_answer_of_a_long_run_is_among_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_service, "TAKE_SECONDS", 0.01)
    backend = HeldBackend()
    service = NodeService(lambda: backend)
    assert await service.ask(pack(1, 7, "run", REQUEST, False)) == b""
    backend.may_end.set()
    number, kind, result = await take_answer(service)
    assert (number, kind, result.stdout) == (7, "done", "done")


async def test_messages_that_overtake_others_wait_for_them() -> None:
    backend = HeldBackend()
    service = NodeService(lambda: backend)
    asked = asyncio.create_task(service.ask(pack(3, 9, "run", REQUEST, False)))
    service.submit(pack(2, 8, "cancel"))
    await asyncio.sleep(0)
    service.submit(pack(1, 8, "run", REQUEST, False))
    number, kind, error = await take_answer(service)
    assert (number, kind, type(error)) == (8, "failed", asyncio.CancelledError)
    backend.may_end.set()
    number, kind, result = pickle.loads(await asked)
    assert (number, kind, result.stdout) == (9, "done", "done")


async def test_cancelling_a_run_that_is_alone_ends_it_once() -> None:
    backend = HeldBackend()
    service = NodeService(lambda: backend)
    asked = asyncio.create_task(service.ask(pack(1, 7, "run", REQUEST, False)))
    while not service._tasks:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    service.submit(pack(2, 7, "cancel"))
    number, kind, error = pickle.loads(await asked)
    assert (number, kind, type(error)) == (7, "failed", asyncio.CancelledError)
    assert backend.is_cancelled and not service._outgoing
