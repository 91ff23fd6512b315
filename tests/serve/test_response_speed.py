"""What makes answers quick, each for itself: one piece on the wire, known paths, turns of starting, little garbage."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.responses import Response
from tests.helpers import until
from tests.serve.conftest import Server
from tests.serve.requests import Box

from warmcell.core.errors import ExecutionTimeout
from warmcell.core.output_events import OutputEvent
from warmcell.core.types import ExecResult
from warmcell.interfaces.serve import server as server_module
from warmcell.interfaces.serve.e2b import box as box_module
from warmcell.interfaces.serve.e2b import process as process_module
from warmcell.interfaces.serve.e2b.box import Starts, starts_of
from warmcell.interfaces.serve.e2b.connect import MessageStream
from warmcell.interfaces.serve.e2b.spares import Spares, spares_of
from warmcell.interfaces.serve.http_protocol import MAX_COALESCED, CoalescingTransport
from warmcell.interfaces.serve.quotas import ConcurrencyLimiter
from warmcell.interfaces.serve.requests import OpenRequests
from warmcell.interfaces.serve.routing import AppRouter, route
from warmcell.interfaces.serve.sandbox_registry import SandboxRegistry
from warmcell.interfaces.serve.service import LOCAL_TENANT, Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.sandbox.local.process import LoopFollower
from warmcell.sessions.streams import Follower


class Transport:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        self.is_closed = True

    abort = close


async def test_what_is_written_in_one_turn_is_sent_once() -> None:
    below = Transport()
    gathered = CoalescingTransport(below, asyncio.get_running_loop())
    for part in (b"head", b"body", b"end"):
        gathered.write(part)
    assert below.sent == []
    await asyncio.sleep(0)
    assert below.sent == [b"headbodyend"]
    gathered.write(b"more")
    gathered.flush()
    gathered.write(b"last")
    gathered.close()
    assert below.sent[1:] == [b"more", b"last"] and below.is_closed
    await asyncio.sleep(0)
    assert len(below.sent) == 3


async def test_no_more_than_the_transport_knows_of_is_held_back() -> None:
    below = Transport()
    gathered = CoalescingTransport(below, asyncio.get_running_loop())
    gathered.write(b"x" * MAX_COALESCED)
    assert below.sent == []
    gathered.write(b"x")
    assert len(below.sent[0]) == MAX_COALESCED + 1
    gathered.write(b"of nobody")
    gathered.abort()
    await asyncio.sleep(0)
    assert len(below.sent) == 1


async def test_known_paths_are_remembered_and_nobody_elses() -> None:
    async def handler(request: Any, tenant: Any) -> Response:
        return Response(request.path_params.get("id", "whole"))

    whole, part = route("GET", "/things", handler, None), route("GET", "/things/{id}", handler, None)
    app = AppRouter([whole, part], None)

    async def ask(method: str, path: str) -> tuple[int, bytes]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "headers": [], "app": _App(), "query_string": b""}
        try:
            await app(scope, None, send)  # type: ignore[arg-type]
        except Exception as error:  # as Starlette's own layers render it
            return error.status_code, b""  # type: ignore[attr-defined]
        return sent[0]["status"], sent[1]["body"]

    for _ in range(2):
        assert await ask("GET", "/things") == (200, b"whole")
        assert await ask("GET", "/things/7") == (200, b"7")
        assert await ask("GET", "/things/{id}") == (200, b"{id}")
        assert (await ask("POST", "/things"))[0] == 405
        assert (await ask("GET", "/nothing"))[0] == 404
    assert app._known == {("GET", "/things"): whole}


class _App:
    """As much of the application as a door asks for."""

    class state:  # noqa: N801
        class service:  # noqa: N801
            is_draining = False
            tenant = staticmethod(lambda token: None)
            reloads = 0
            revocable = staticmethod(lambda tenant, scope: set())
            has_right = staticmethod(lambda tenant, scope: True)
            sandboxes = SandboxRegistry()
            open_requests = OpenRequests()
            concurrency = ConcurrencyLimiter()


async def test_a_stream_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, sent = asyncio.Event(), list[Any]()

    async def messages() -> AsyncIterator[list[dict[str, Any]]]:
        try:
            yield [{"number": 1}, {"number": 2}]
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def begin() -> AsyncIterator[list[dict[str, Any]]]:
        return messages()

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async with asyncio.timeout(30):
        await MessageStream(begin())({}, receive, send)
    assert ended.is_set() and [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[1]["body"].count(b"number") == 2

    async def stay() -> Any:
        await asyncio.Event().wait()

    cut = asyncio.ensure_future(MessageStream(begin())({}, stay, send))
    await asyncio.sleep(0.1)
    cut.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cut


async def test_programs_start_in_order_and_tenants_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_module.os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(box_module, "_STARTING_SECONDS", 3600)
    starts, begun = Starts(), list[str]()

    async def start(name: str) -> None:
        turn = await starts.run_slot(name[0])
        begun.append(name)
        await asyncio.sleep(0)
        turn.end()

    first, second = await starts.run_slot("a"), await starts.run_slot("b")
    assert not starts.is_idle
    others = [asyncio.ensure_future(start(name)) for name in ("a1", "a2", "b1", "c1")]
    await asyncio.sleep(0)
    assert begun == []
    first.end()
    first.end()  # a second call frees no second slot
    async with asyncio.timeout(30):
        while len(begun) < 3:
            await asyncio.sleep(0)
        assert begun == ["a1", "c1", "a2"]  # b has its share
        second.end()
        await asyncio.gather(*others)
    assert begun[3:] == ["b1"] and starts.is_idle


async def test_who_starts_late_or_never_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest may stop its own agent: requests to that sandbox do not hold a slot for long."""
    monkeypatch.setattr(box_module.os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(box_module, "_STARTING_SECONDS", 0.01)
    starts = Starts()
    async with asyncio.timeout(30):
        late = [await starts.run_slot("a") for _ in range(3)]
        monkeypatch.setattr(box_module, "_STARTING_SECONDS", 3600)
        for turn in late:
            turn.end_soon()  # though its place is another's by now
        going_on = await starts.run_slot("a")
        going_on.end_soon()
        (await starts.run_slot("a")).end()
    assert starts.is_idle


async def test_a_first_program_comes_before_others_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_module.os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(box_module, "_FIRST_SECONDS", 3600)
    starts = Starts()
    async with asyncio.timeout(30):
        given = [await starts.new_sandbox("a") for _ in range(2)]
        waiting = [asyncio.ensure_future(starts.new_sandbox("a")) for _ in range(2)]
        other = await starts.new_sandbox("b")  # to whom one is left
        (await starts.run_slot("a")).end()
        assert not any(wait.done() for wait in waiting) and not starts.is_idle
        given[0].end()  # its program has started
        third = await waiting[0]
        assert not waiting[1].done()
        monkeypatch.setattr(box_module, "_FIRST_SECONDS", 0.01)
        given[1].end()
        await waiting[1]
        await starts.new_sandbox("a")  # a sandbox without a program is not waited for
        other.end()
        third.end()
        while not starts.is_idle:
            await asyncio.sleep(0.01)


def test_who_asks_for_no_program_keeps_nobody_from_getting_a_sandbox(server: Server) -> None:
    count = min(24, 6 * len(os.sched_getaffinity(0)))  # the server's quota is 32
    with ThreadPoolExecutor(count) as threads:
        boxes = list(threads.map(lambda _: Box(server.client), range(count)))
        assert [box.run("echo 1") for box in boxes[:2]] == [(0, "1\n", "")] * 2
        assert list(threads.map(Box.kill, boxes)) == [204] * count


def test_programs_that_stay_keep_nobody_from_starting(server: Server) -> None:
    box, asked = Box(server.client), {"cmd": "/bin/sleep", "args": ["60"]}
    count = 3 * len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(count) as threads:
        staying = [threads.submit(box.stream, "process.Process/Start", process=asked) for _ in range(count)]
        assert box.run("echo 1") == (0, "1\n", "")
        listing = f"{server.url}/process.Process/List"
        until(lambda: len(box.client.post(listing, json={}, headers=box.headers).json()["processes"]) == count)
        assert box.kill() == 204
        assert all(stay.result() for stay in staying)


def test_a_sandbox_that_does_not_answer_keeps_nobody_from_starting(server: Server) -> None:
    stopped, other = Box(server.client), Box(server.client)
    asked, count = {"cmd": "/bin/bash", "args": ["-c", "kill -STOP $PPID"]}, 3 * len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(count) as threads:
        waiting = [threads.submit(stopped.stream, "process.Process/Start", process=asked) for _ in range(count)]
        until(lambda: waiting[0].running() or waiting[0].done())
        assert other.run("echo 1") == (0, "1\n", "")
        assert (stopped.kill(), other.kill()) == (204, 204)


async def test_none_is_made_ahead_while_programs_start(monkeypatch: pytest.MonkeyPatch) -> None:
    service, made = Service(Settings(spares=1)), asyncio.Event()

    async def make(self: Spares, tenant: Any) -> Any:
        made.set()
        raise asyncio.CancelledError

    monkeypatch.setattr(Spares, "_make_one", make)
    monkeypatch.setattr(box_module, "_STARTING_SECONDS", 3600)
    turn = await starts_of(service).run_slot("somebody")
    spares_of(service).take(LOCAL_TENANT)
    await asyncio.sleep(0.2)
    assert not made.is_set()
    turn.end()
    async with asyncio.timeout(30):
        await made.wait()
    await service.aclose()


async def test_a_server_collects_its_garbage_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has loaded would else be looked at in the middle of a request, for a twentieth of a second."""
    before, found = gc.get_threshold(), dict[str, Any]()
    gc.unfreeze()  # what conftest.py froze

    async def look(*_: Any, **__: Any) -> None:
        found.update(frozen=gc.get_freeze_count(), threshold=gc.get_threshold())

    monkeypatch.setattr(server_module, "serve_on", look)
    service = Service(Settings())
    try:
        gc.set_threshold(100_000)
        with socket.socket() as listening:
            await server_module.serve_app(service, listening)
    finally:
        gc.set_threshold(*before)
        gc.freeze()
        await service.aclose()
    assert found["frozen"] > 10_000 and found["threshold"][0] < 10_000


class Ending:
    """A process that has written something and then ends, both in one moment."""

    pid = 7

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    @property
    def local(self) -> Any:
        return self

    def follow(self) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def take(self, timeout: float) -> tuple[list[OutputEvent], bool]:
        return [OutputEvent("stdout", b"hello")], True

    def result(self) -> ExecResult:
        if self._error is not None:
            raise self._error
        return ExecResult(stdout="", stderr="", exit_code=0)


@pytest.mark.parametrize("error", [None, ExecutionTimeout(1.0)])
async def test_what_comes_last_goes_with_the_end_and_is_not_lost(error: Exception | None) -> None:
    sent: list[dict[str, Any]] = []

    async def begin() -> Any:
        process: Any = Ending(error)
        return process_module._events(process_module.Command({}, None, process, False))

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await MessageStream(begin())({}, asyncio.Event().wait, send)
    bodies = [message["body"] for message in sent if message["type"] == "http.response.body"]
    assert b"aGVsbG8=" in bodies[1] and bodies[-1].count(b"\x02\0\0") == 1
    assert [message.get("more_body", False) for message in sent[1:]] == [True] * (len(bodies) - 1) + [False]
    assert (len(bodies), b"deadline_exceeded" in bodies[-1]) == ((2, False) if error is None else (3, True))


async def test_a_follower_is_woken_once_until_it_looks() -> None:
    """And for what comes after it has looked again: nothing is left lying."""

    class Process:
        def follow(self, on_ready: Callable[[], None]) -> Follower:
            self.follower = Follower(on_ready, lambda: None)
            return self.follower

        def unfollow(self, follower: Follower) -> None:
            follower.finish()

    process: Any = Process()
    with LoopFollower(process) as following:
        assert await following.take(0.01) == ([], False)
        for piece in ("one", "two"):
            await asyncio.to_thread(process.follower.add, OutputEvent("stdout", piece.encode()))
        assert [event.data for event in (await following.take())[0]] == [b"one", b"two"]
        await asyncio.to_thread(process.follower.finish)
        assert await following.take() == ([], True)
