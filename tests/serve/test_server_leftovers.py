"""Nothing is left of what was asked, an idle sandbox costs little, one is made ahead, and streams are not held up."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import has_user_namespaces, require, until
from tests.serve.conftest import ROOT
from tests.serve.requests import Box

from warmcell.core.records import replace
from warmcell.interfaces.serve.e2b import spares as spares_module
from warmcell.interfaces.serve.e2b.spares import PreparedSandbox, max_spares, spares_of
from warmcell.interfaces.serve.listener import ConnectionLimit, listen
from warmcell.interfaces.serve.service import LOCAL_TENANT, Service
from warmcell.interfaces.serve.settings import Settings

Start = Callable[..., Any]
RUN = {"language": "python", "code": "print(1)", "timeout": 60}
MOST_MB = 40


def below(pid: int) -> list[int]:
    """The children of every thread, because a process is a child of the thread that started it."""
    try:
        tasks = [Path(f"/proc/{pid}/task/{task}/children").read_text() for task in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
    return [found for child in " ".join(tasks).split() for found in (int(child), *below(int(child)))]


def proportional_mb(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended, or is an init that may not be inspected
            continue
        total += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return total / 1024


def wait_until_stable(looked_at: Callable[[], Any]) -> Any:
    """What is the same three times in a row: cells that are kept ready come and go for a moment."""
    seen: list[Any] = []
    latest = time.monotonic() + 60
    while len(seen) < 3 or len(set(seen[-3:])) > 1:
        assert time.monotonic() < latest, seen
        time.sleep(0.3)
        seen.append(looked_at())
    return seen[-1]


def test_nothing_is_left_of_many_requests(start_server: Start) -> None:
    """The long form: benchmarks/server.py, two hundred clients for five minutes."""
    with start_server("--spares", "1") as server:  # more of them would go after a while

        def state() -> tuple[int, int]:
            return len(os.listdir(f"/proc/{server.process.pid}/fd")), len(below(server.process.pid))

        def one(number: int) -> None:
            if number % 8 == 0:
                box = Box(server.client)
                assert box.run("echo 1") == (0, "1\n", "") and box.kill() == 204
            elif number % 8 == 4:
                stream = server.client.post("/v1/run", json=RUN, headers={"accept": "text/event-stream"})
                assert "event: result" in stream.text
            else:
                assert server.client.post("/v1/run", json=RUN).json()["stdout"] == "1\n"

        def is_as_before() -> bool:
            files, processes = state()
            return files <= before[0] + 2 and processes <= before[1]

        def round_of(count: int) -> None:
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(one, range(count)))

        round_of(32)
        until(lambda: "warmcell_live_cages 1.0" in server.client.get("/metrics").text)  # the spare alone
        before = wait_until_stable(state)
        round_of(64)
        until(is_as_before)

        boxes = [Box(server.client) for _ in range(4)]
        assert [box.run("true")[0] for box in boxes] == [0] * 4
        more = wait_until_stable(state)[1] - before[1]
        assert 0 < more <= 4 * 8
        size = proportional_mb(below(server.process.pid))
        for box in boxes:
            box.kill()
        until(is_as_before)
        assert (size - proportional_mb(below(server.process.pid))) / 4 < MOST_MB


def test_a_sandbox_is_made_ahead_for_who_asks_for_nothing_special(monkeypatch: pytest.MonkeyPatch) -> None:
    require(has_user_namespaces(), "this host has no user namespaces")
    asyncio.run(_count_ahead(monkeypatch))


async def _count_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares_module, "_IDLE_SECONDS", 3600.0)  # longer than it takes to make five
    service = Service(Settings())
    spares = spares_of(service)
    assert spares.take(LOCAL_TENANT) is None  # the first request
    first = await _next(spares)
    home = first.home.path
    assert (await (await first.sandbox.spawn("pwd; ls -A; echo $HOME", cwd="/home/user")).wait()).stdout == (
        "/home/user\n/home/user\n"
    )
    second = await _next(spares)
    assert second.home.path != home
    third = await _ready(spares)
    assert spares.take(replace(LOCAL_TENANT, disk_mb=1)) is None  # that one's are smaller
    burst = [housed for housed in (spares.take(LOCAL_TENANT) for _ in range(4)) if housed is not None]
    assert burst == [third]
    async with asyncio.timeout(60):
        while len(spares.ready()) != 5:  # three were missed here and one was used, one was missed by the other tenant
            await asyncio.sleep(0.02)
    assert [demand.target for demand in spares.demands.values()] == [1, 4]
    monkeypatch.setattr(spares_module, "_IDLE_SECONDS", 0.0)  # no request for a long time
    async with asyncio.timeout(60):
        while len(spares.ready()) != 1:
            spares._next_lowering = 0.0
            spares._start_keeping()
            await asyncio.sleep(0.02)
    (last,) = spares.ready()
    for housed in (first, second, third):
        await housed.destroy()
    await service.aclose()
    assert not any(Path(housed.home.path).exists() for housed in (first, second, third, last))


def test_how_many_are_made_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"kb": 1 << 30, "descriptors": 1 << 16}
    monkeypatch.setattr(spares_module, "_available_kb", lambda: limits["kb"])
    monkeypatch.setattr(spares_module.resource, "getrlimit", lambda _: (limits["descriptors"],) * 2)
    assert [max_spares(None, 1), max_spares(0, 1), max_spares(100, 1), max_spares(5, 2)] == [64, 0, 100, 3]
    assert max_spares(None, 2) == 32
    limits["kb"] = 1 << 20  # a gigabyte is left
    assert [max_spares(None, 1), max_spares(None, 4)] == [16, 4]
    limits["descriptors"] = 1024
    assert max_spares(None, 1) == 8
    limits["kb"] = 0
    assert max_spares(None, 1) == 1


async def _ready(spares: Any) -> PreparedSandbox:
    async with asyncio.timeout(60):
        while not spares.ready():
            await asyncio.sleep(0.02)
    found: PreparedSandbox = spares.ready()[0]
    return found


async def _next(spares: Any) -> PreparedSandbox:
    await _ready(spares)
    found: PreparedSandbox = spares.take(LOCAL_TENANT)
    return found


def test_no_piece_of_a_stream_waits_for_the_one_before() -> None:
    """Which takes 40 ms each time, where the client's side confirms late."""
    with (
        listen(Settings(port=0)) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_client_that_lost_its_network_is_noticed_without_traffic() -> None:
    """Its WebSocket to a port of a silent guest counted for its token as long as the sandbox lived."""
    with (
        listen(Settings(port=0)) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, pause, count = (
            accepted.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + pause * count <= 120


def test_what_does_not_end_in_time_hears_of_it() -> None:
    """SIGTERM waits for requests in progress, with a bound; their clients then get an error about the host."""
    require(has_user_namespaces(), "this host has no user namespaces")
    code = (
        "from warmcell.interfaces.serve import settings\n"
        "settings.LAST_RESPONSE_SECONDS = 30.0\n"  # to end the runs: longer than on a machine that does nothing else
        "from warmcell.interfaces.serve.server import serve\n"
        "serve(settings.Settings(port=0, drain_timeout=0.3), lambda url: print(url, flush=True))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with (
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as process,
        ThreadPoolExecutor(3) as threads,
    ):
        assert process.stdout is not None
        with httpx.Client(base_url=process.stdout.readline().strip(), timeout=60, trust_env=False) as client:
            box = Box(client)
            long = RUN | {"code": "import time; time.sleep(60)"}
            run = threads.submit(client.post, "/v1/run", json=long)
            stream = threads.submit(client.post, "/v1/run", json=long, headers={"accept": "text/event-stream"})
            started = {"cmd": "/bin/sleep", "args": ["60"]}
            command = threads.submit(box.stream, "process.Process/Start", process=started)
            until(lambda: len(client.get("/v1/activity").json()["runs"]) == 2)
            until(lambda: bool(box.call("process.Process/List").json()["processes"]))
            process.terminate()
            assert run.result(60).json()["error"]["fault"] == "host" and run.result().status_code == 503
            assert "event: error" in stream.result(60).text and '"fault": "host"' in stream.result().text
            assert command.result(60)[-1]["error"]["code"] == "unavailable"
        assert process.wait(60) == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_that_has_printed_its_url_can_be_stopped(start_server: Start, workers: str) -> None:
    for _ in range(3):
        with start_server("--workers", workers) as server:
            assert server.stop()[0] == 0


def test_who_comes_when_there_are_too_many_is_told_when_to_come_again() -> None:
    said: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        said.append({"type": "taken"})

    async def come(others: int, kind: str = "http") -> dict[str, Any]:
        bounded = ConnectionLimit(app, 2)
        bounded.connections = range(others)
        said.clear()
        await bounded({"type": kind, "path": "/", "headers": []}, None, send)
        return said[0]

    assert asyncio.run(come(2)) == {"type": "taken"}
    for kind in ("http", "websocket"):
        refused = asyncio.run(come(3, kind))
        assert refused["status"] == 503 and (b"retry-after", b"1") in refused["headers"]
