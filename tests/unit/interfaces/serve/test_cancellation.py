"""A cancellation at every await of what every request passes: nothing is left running, no slot is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from tests.helpers import cancel_at_every_await

from warmcell.interfaces.serve import event_streams, sandbox_registry
from warmcell.interfaces.serve.event_streams import EventStream, stream_events, with_keepalives
from warmcell.interfaces.serve.requests import while_connected
from warmcell.interfaces.serve.responses import ClientDisconnected
from warmcell.interfaces.serve.sandbox_registry import SandboxNotFound, SandboxRegistry
from warmcell.interfaces.serve.service import LOCAL_TENANT
from warmcell.interfaces.serve.websockets import run_until_first_ends


async def pause() -> None:
    """Cleaning up takes time, also for one that is cancelled during it."""
    for _ in range(3):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


class Work:
    """A coroutine that counts itself while it runs, and takes its time to end when it is cancelled."""

    def __init__(self) -> None:
        self.running = 0

    async def run(self, steps: int = 3) -> str:
        self.running += 1
        try:
            for _ in range(steps):
                await asyncio.sleep(0)
            return "done"
        finally:
            await pause()
            self.running -= 1

    async def items(self) -> AsyncIterator[int]:
        self.running += 1
        try:
            for number in range(3):
                await asyncio.sleep(0)
                yield number
        finally:
            await pause()
            self.running -= 1


def make_request() -> Request:
    async def receive() -> Any:
        await asyncio.Event().wait()

    return Request({"type": "http", "method": "GET", "path": "/", "headers": []}, receive)


async def test_work_for_a_client() -> None:
    work = Work()
    async for run in cancel_at_every_await(lambda: while_connected(make_request(), work.run())):
        assert work.running == 0
        assert (run.result == "done") is run.is_complete
    assert len(asyncio.all_tasks()) == 1


async def test_items_with_keepalives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "KEEPALIVE_SECONDS", 0.001)
    work = Work()

    async def read() -> list[int]:
        async with aclosing(with_keepalives(work.items())) as items:  # type: ignore[type-var]
            return [item async for item in items if item is not None]

    async for run in cancel_at_every_await(read):
        assert work.running == 0 and (run.result == [0, 1, 2]) is run.is_complete
    assert len(asyncio.all_tasks()) == 1


async def test_a_response_of_events() -> None:
    """Also one whose client does not read: `send` waits, and more is emitted than may be queued."""
    work, ends = Work(), 0

    async def emit_many(emit: event_streams.Emit) -> str:
        for number in range(2 * event_streams.MAX_QUEUED):
            await emit("stdout", {"text": number})
        return await work.run()

    async def respond() -> int:
        nonlocal ends
        sent = []

        async def send(message: Any) -> None:
            await asyncio.sleep(0)
            sent.append(message)

        async def end() -> None:
            nonlocal ends
            ends += 1

        request = make_request()
        await EventStream(stream_events(emit_many, lambda size: nullcontext()), end)(
            request.scope, request.receive, send
        )
        return len(sent)

    async for run in cancel_at_every_await(respond):
        assert work.running == 0 and ends == run.at
        assert len(asyncio.all_tasks()) == 1
    assert run.result == 2 * event_streams.MAX_QUEUED + 3  # head, events, result, end


async def test_a_client_that_leaves_at_every_stage() -> None:
    """The disconnect message arrives instead of the cancellation."""
    work = Work()
    for stage in range(60):
        sent: list[Any] = []

        async def receive(stage: int = stage, sent: list[Any] = sent) -> Any:
            while len(sent) < stage:
                await asyncio.sleep(0)
            return {"type": "http.disconnect"}

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)
            await asyncio.sleep(0)

        async def emit_many(emit: event_streams.Emit) -> str:
            for number in range(50):
                await emit("stdout", {"text": number})
            return await work.run()

        request = Request({"type": "http", "method": "GET", "path": "/", "headers": []}, receive)
        await asyncio.wait_for(
            EventStream(stream_events(emit_many, lambda size: nullcontext()))(request.scope, receive, send), 20
        )
        assert work.running == 0
        if stage < 3:
            with pytest.raises(ClientDisconnected):
                await while_connected(request, work.run(1000))
        assert work.running == 0
    assert len(asyncio.all_tasks()) == 1


async def test_tasks_of_a_websocket() -> None:
    work = Work()
    async for _ in cancel_at_every_await(lambda: run_until_first_ends(work.run(2), work.run(50))):
        assert work.running == 0


class Sandbox:
    """As much of a sandbox as the registry uses."""

    living = 0

    def __init__(self) -> None:
        Sandbox.living += 1
        self.is_destroyed = False

    async def destroy(self) -> None:
        await asyncio.sleep(0)
        if not self.is_destroyed:
            self.is_destroyed = True
            Sandbox.living -= 1


async def test_a_slot_in_the_registry() -> None:
    registry = SandboxRegistry()
    tenant = SimpleNamespace(id="t", sandboxes=1, lifetime=60)

    async def make() -> Any:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return Sandbox()

    async for _ in cancel_at_every_await(lambda: registry.add_async(make, tenant, 60, {})):  # type: ignore[arg-type]
        for entry in registry.all():
            await registry.remove(entry)
        registry.check_room(tenant)  # type: ignore[arg-type]
    assert Sandbox.living == 0


async def test_one_sandbox_that_cannot_be_removed_does_not_keep_the_others() -> None:
    registry, removed = SandboxRegistry(), []

    class Stubborn(Sandbox):
        async def destroy(self) -> None:
            raise OSError("no")

    class Good(Sandbox):
        async def destroy(self) -> None:
            await asyncio.sleep(0.01)
            removed.append(self)

    for kind in (Stubborn, Good, Good):
        registry.add(kind, LOCAL_TENANT, 60, {})  # type: ignore[arg-type]
    await registry.aclose()
    assert len(removed) == 2


async def test_a_sandbox_that_cannot_be_paused_is_removed() -> None:
    registry = SandboxRegistry()
    entry = registry.add(Sandbox, LOCAL_TENANT, 0.01, {})  # type: ignore[arg-type]

    async def fail() -> None:
        raise OSError("no")

    entry.on_expiry = fail
    async with asyncio.timeout(20):
        while registry.all():
            await asyncio.sleep(0.01)


async def test_a_jump_of_the_clock_ends_no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = SandboxRegistry()
    entry = registry.add(Sandbox, LOCAL_TENANT, 60, {})  # type: ignore[arg-type]
    import time

    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 1e6)
    earliest = time.monotonic() + 50
    registry.prolong(entry, 50, LOCAL_TENANT)
    latest = time.monotonic() + 50
    await asyncio.sleep(0.05)
    assert registry.all() == [entry]
    assert earliest <= entry.deadline <= latest
    for jump in (1e6, -1e6):
        monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
        assert not entry.has_left(51) and entry.has_left(-1e5) and 0 <= entry.age < 1e5
    await registry.aclose()


async def test_a_clock_that_was_ahead_at_the_start_ends_no_restored_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was removed early, by so much as the clock had been ahead."""
    import time

    registry, made, ahead = SandboxRegistry(), time.time() - 1000, [5000.0]
    clock = SimpleNamespace(time=lambda: time.time() + ahead[0], monotonic=time.monotonic)
    monkeypatch.setattr(sandbox_registry, "time", clock)
    entry = registry.restore(Sandbox(), LOCAL_TENANT, "a", made, made + 7000, {})  # type: ignore[arg-type]
    assert not entry.has_left(1001)
    ahead[0] = 0.0
    await registry._expire(entry)
    assert registry.all() == [entry] and entry.has_left(5900) and not entry.has_left(6001)
    registry.prolong(entry, 50, LOCAL_TENANT)
    ahead[0] = -9000.0  # the clock is behind: what a client has set since then holds
    assert not entry.read_clock_again() and not entry.has_left(51)
    again = registry.restore(Sandbox(), LOCAL_TENANT, "b", made, made + 7000, {})  # type: ignore[arg-type]
    assert not again.has_left(7001)
    await registry._expire(entry)
    assert registry.all() == [again]
    await registry.aclose()


@pytest.mark.parametrize("failure", [None, OSError("it is gone")])
async def test_a_sandbox_that_is_removed_while_it_is_paused_is_closed_once(failure: OSError | None) -> None:
    """It was closed again at the end of its lifetime, and its volumes then counted as unused by others too."""
    registry, closed = SandboxRegistry(), []
    entry = registry.add(Sandbox, LOCAL_TENANT, 60, {})  # type: ignore[arg-type]
    entry.on_close.append(lambda: closed.append(entry))

    async def pause() -> None:
        await registry.remove(entry)
        if failure is not None:
            raise failure

    entry.on_expiry = pause
    await registry._expire(entry)
    with pytest.raises(SandboxNotFound):
        registry.prolong(entry, 50, LOCAL_TENANT)
    assert closed == [entry] and registry._timers == {}
