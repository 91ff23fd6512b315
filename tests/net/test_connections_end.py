"""Connections of guests: a bounded number of the host program's descriptors, and none of them outlives its run."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.helpers import eventually, until_async
from tests.net.conftest import Proxies
from tests.net.in_cage import TALK, World, allow_names, descriptors, world
from tests.net.proxy_talk import get, talk
from tests.net.servers import policy_for, reply, serving

from warmcell.core.errors import BackendBusy, ExecutionTimeout
from warmcell.core.types import ExecRequest, Language
from warmcell.net.connect import dial, limits
from warmcell.net.connect.limits import FairSlots
from warmcell.net.proxy.egress_proxy import EgressProxy
from warmcell.net.rules.fetch_policy import FetchPolicy
from warmcell.sandbox.blocking import Sandbox

Start = Callable[..., EgressProxy]


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world(monkeypatch) as made:
        yield made


class Mute:
    """A server of the host that takes connections and says nothing; it knows when each of them ended."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = int(self.listener.getsockname()[1])
        self.open = self.seen = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.open, self.seen = self.open + 1, self.seen + 1
                threading.Thread(target=self._hold, args=(connection,), daemon=True).start()

    def _hold(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while connection.recv(65536):
                pass
        self.open -= 1

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture
def mute() -> Iterator[Mute]:
    made = Mute()
    yield made
    made.close()


class CountingSlots(FairSlots):
    """Remembers how many slots were taken at most."""

    most_taken = 0

    def take(self, held: int) -> bool:
        is_taken = super().take(held)
        self.most_taken = max(self.most_taken, self.taken)
        return is_taken


@pytest.mark.attack("S2-12")
def test_places_are_shared_so_that_the_next_one_finds_some() -> None:
    slots = FairSlots(30)

    def greedy() -> int:
        held = 0
        while slots.take(held):
            held += 1
        return held

    assert [greedy() for _ in range(7)] == [15, 8, 4, 2, 2, 2, 2]
    assert slots.taken == 35 and slots.take(1) and not slots.take(2)
    for _ in range(36):
        slots.release()
    assert slots.taken == 0 and greedy() == 15


@pytest.mark.attack("S2-12")
async def test_all_proxies_together_hold_no_more_than_the_total(start_proxy: Start, proxies: Proxies) -> None:
    async with serving(reply()) as server:
        slots = FairSlots(12)
        first, second = (start_proxy(policy_for(server), slots=slots) for _ in range(2))
        before = descriptors()
        flood = [await talk(proxy) for proxy in [first] * 20 + [second] * 20]

        def turned_away() -> int:
            return sum("too many connections" in line for line in proxies.lines)

        await until_async(lambda: turned_away() + slots.taken == len(flood))
        # The flood's own ends are in this process as well.
        assert descriptors() - before - len(flood) <= slots.most
        assert 6 <= slots.taken < slots.most  # how they share depends on who was first; some are left for others
        for guest in flood:
            guest.close()
        await until_async(lambda: slots.taken == 0)
        assert (await get(second, f"http://site.test:{server.port}/"))[0] == 200
    assert any("too many connections" in line for line in proxies.lines)


@pytest.mark.attack("S2-12")
def test_guests_cannot_use_up_the_descriptors_of_the_host_program(
    outside: World, mute: Mute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three guests with all the connections that they can get; a fourth is served meanwhile."""
    slots = CountingSlots(24)
    monkeypatch.setattr("warmcell.net.proxy.egress_proxy.connection_slots", lambda: slots)
    backend = outside.backend(allow_names(mute.port).build())
    hoard = f"""{TALK}
import time
held = []
for _ in range(60):
    try:
        held.append(tunnel("site.test:{mute.port}"))
    except OSError:
        pass
print(sum(b" 200 " in answer for _, answer in held), flush=True)
time.sleep(3)
"""
    before = descriptors()
    with ThreadPoolExecutor(3) as threads:
        requests = [ExecRequest(Language.PYTHON, hoard, 30) for _ in range(3)]
        hoarding = [threads.submit(backend.execute_blocking, request) for request in requests]
        assert eventually(lambda: mute.open >= 12)
        result = backend.execute_blocking(
            ExecRequest(Language.PYTHON, f"{TALK}\nprint(tunnel('site.test:{mute.port}')[1][:12])", 20)
        )
        most = descriptors() - before
        counts = [int(ended.result().stdout) for ended in hoarding]
    assert result.stdout == "b'HTTP/1.1 200'\n"
    # Not the sum of what they got: on a loaded host one may begin when another has ended.
    assert slots.most_taken <= slots.most and max(counts) <= slots.most / 2
    assert most < 2 * slots.most + 4 * 40  # both ends of each connection, and what four runs cost by themselves
    assert eventually(lambda: mute.open == 0) and slots.taken == 0


@pytest.mark.attack("S2-12")
def test_the_total_is_taken_from_the_programs_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    for soft, most in ((64, 8), (1024, 128), (1 << 20, 1024), (resource.RLIM_INFINITY, 1024)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        limits.connection_slots.cache_clear()
        assert limits.connection_slots().most == most
    limits.connection_slots.cache_clear()


@pytest.mark.attack("S2-12")
def test_a_proxy_that_finds_no_descriptor_is_a_typed_error_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def exhausted(self: EgressProxy) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(EgressProxy, "_serve", exhausted)
    proxy = EgressProxy(socket.create_server(("127.0.0.1", 0)), None)
    with pytest.raises(BackendBusy, match="RLIMIT_NOFILE"):
        proxy.start()
    proxy.close()


@pytest.mark.attack("S2-12")
def test_one_guest_cannot_take_all_lookups_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names whose servers do not answer hold a thread until the C library gives up, whoever still waits for them."""
    answer = threading.Event()

    def hangs(name: str, *_: object, **__: object) -> list[object]:
        if name.startswith("slow"):
            answer.wait(20)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", hangs)

    async def flood() -> int:
        asking = [asyncio.ensure_future(dial.system_resolver(f"slow{n}.test", 80)) for n in range(100)]
        await asyncio.sleep(0.2)
        refused = sum(task.done() and isinstance(task.exception(), OSError) for task in asking)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        return refused

    async def another() -> list[str]:
        return list(await dial.system_resolver("quick.test", 80))

    try:
        assert asyncio.run(flood()) == 100 - dial.MAX_LOOKUPS // 2
        assert dial._slots.taken == dial.MAX_LOOKUPS // 2  # nobody waits, and they are still counted
        assert asyncio.run(another()) == ["127.0.0.1"]
    finally:
        answer.set()
    assert eventually(lambda: dial._slots.taken == 0)


@pytest.mark.attack("S2-18")
def test_connections_of_a_process_guest_end_with_its_run(outside: World, mute: Mute) -> None:
    backend = outside.backend(allow_names(mute.port).build())
    waiting = f"""{TALK}
s, answer = tunnel("site.test:{mute.port}")
s.sendall(b"hello")
request("http://site.test:{mute.port}/")
"""
    with pytest.raises(ExecutionTimeout):
        backend.execute_blocking(ExecRequest(Language.PYTHON, waiting, 4))
    assert eventually(lambda: mute.seen == 2)
    assert eventually(lambda: mute.open == 0), "the host still talks for a run that has ended"


@pytest.mark.attack("S2-18")
@pytest.mark.parametrize("ends_by", ["timeout", "cancel"])
def test_a_fetch_of_a_wasm_guest_ends_with_its_run(mute: Mute, ends_by: str) -> None:
    policy = FetchPolicy((f"127.0.0.1:{mute.port}",), request_timeout=60)
    with Sandbox(backend="wasm", fetch_policy=policy) as sandbox:
        sandbox.sh("echo warm")
        command = f"curl http://127.0.0.1:{mute.port}/"
        if ends_by == "timeout":
            with pytest.raises(ExecutionTimeout):
                sandbox.exec("sh", ["-c", command], timeout=3)
        else:
            with ThreadPoolExecutor(1) as thread:
                running = thread.submit(sandbox.exec, "sh", ["-c", command], timeout=30)
                assert eventually(lambda: mute.open == 1)
                sandbox.destroy()
                assert running.exception(20) is not None
        assert eventually(lambda: mute.seen == 1)
        assert eventually(lambda: mute.open == 0), "the fetch goes on without its run"
