"""Sandboxes whose network changes between phases, and the log of their connections; all of it on loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import PATIENCE, eventually, until
from tests.net.in_cage import TALK, World, world
from tests.net.site import Site

from warmcell import AsyncSandbox, Connection, FetchPolicy, PolicyViolation, Sandbox, SandboxPolicyBuilder
from warmcell.errors import FetchFailed
from warmcell.lifetime.threads import in_thread
from warmcell.net.connect.connection_log import MOST_CONNECTIONS, ConnectionLog
from warmcell.net.connect.dial import SocketStream
from warmcell.net.rules.hosts import parse_host
from warmcell.net.rules.rule_book import Decision, EgressRequest, Narrowing

#: One tunnel that sends a byte and then waits for the other end.
HELD = """
s, answer = tunnel(f"site.test:{port}")
print(answer.split()[1].decode(), flush=True)
s.settimeout(None)
s.sendall(b"x")
print("ended", len(everything(s)), flush=True)
"""


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with world(monkeypatch) as made:
        yield made


@pytest.fixture
def site(outside: World, tmp_path: Path) -> Site:
    return outside.site(tmp_path / "site")


class Silent:
    """A server that accepts, counts what it receives, and never replies."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.received = b""
        self.has_ended = False
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self.listener.accept()
        with connection:
            while data := _receive(connection):
                self.received += data
        self.has_ended = True


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except OSError:
        return b""


@pytest.fixture
def silent() -> Iterator[Silent]:
    made = Silent()
    yield made
    made.listener.close()


def policy_for(port: int) -> SandboxPolicyBuilder:
    builder = SandboxPolicyBuilder().allow_process_spawn()
    for name in ("site.test", "other.test", "127.0.0.1"):
        builder = builder.allow_domain(name, [port])
    return builder


def get(port: int, *names: str) -> str:
    return f"{TALK}\nfor name in {names!r}:\n    print(status(request(f'http://{{name}}:{port}/hello.txt')))"


def test_phases_of_a_sandbox(site: Site) -> None:
    policy = policy_for(site.port).build()
    with Sandbox(policy=policy) as sandbox:
        code = get(site.port, "site.test", "other.test")
        assert sandbox.run(code).stdout == "200\n200\n"
        sandbox.update_network([f"site.test:{site.port}"])
        assert sandbox.run(code).stdout == "200\n403\n"
        with sandbox.fork() as fork:  # has what its original has at present
            assert fork.run(code).stdout == "200\n403\n" and len(fork.connections()) == 2
        sandbox.update_network([])
        assert sandbox.run(code).stdout == "403\n403\n"
        with pytest.raises(PolicyViolation, match=r"evil\.test is not in the policy"):
            sandbox.update_network(["evil.test"])
        assert sandbox.run(code).stdout == "403\n403\n"
        sandbox.update_network(policy)
        assert sandbox.run(code).stdout == "200\n200\n"
        found = sandbox.connections()
    assert [(item.host, item.is_allowed) for item in found[:4]] == [
        *[("site.test", True), ("other.test", True), ("site.test", True), ("other.test", False)]
    ]
    first = found[0]
    assert isinstance(first, Connection) and first.port == site.port and first.rule == "rule: site.test"
    assert first.bytes_sent > 40 and first.bytes_received > 40 and first.time > 1.7e9
    assert (found[3].bytes_sent, found[3].rule) == (0, "update_network")


def test_a_tunnel_that_is_no_longer_allowed_is_cut_and_others_stay(silent: Silent, outside: World) -> None:
    with Sandbox(policy=policy_for(silent.port).build()) as sandbox:
        process = sandbox.spawn(["python3", "-uc", f"{TALK}\nport = {silent.port}\n{HELD}"])
        until(lambda: silent.received == b"x")
        sandbox.update_network([f"site.test:{silent.port}"])
        (entry,) = sandbox.connections()
        assert (entry.bytes_sent, entry.is_allowed) == (1, True)
        assert not silent.has_ended and process.is_running
        sandbox.update_network([f"other.test:{silent.port}"])
        assert process.wait(PATIENCE).stdout == "200\nended 0\n"
        assert eventually(lambda: silent.has_ended)


async def test_a_fetch_that_is_no_longer_allowed_is_cut(silent: Silent) -> None:
    fetch_policy = FetchPolicy((f"127.0.0.1:{silent.port}",))
    async with AsyncSandbox(fetch_policy=fetch_policy) as sandbox:
        fetching = asyncio.create_task(sandbox.fetch(f"http://127.0.0.1:{silent.port}/"))
        while not silent.received:
            await asyncio.sleep(0.01)
        await sandbox.update_network([])
        with pytest.raises(FetchFailed, match="no longer allowed"):
            await fetching
        with pytest.raises(FetchFailed, match="not allowed at the moment"):
            await sandbox.fetch(f"http://127.0.0.1:{silent.port}/")
        assert [item.is_allowed for item in await sandbox.connections()] == [True, False]


def test_a_sandbox_without_a_network_gets_none() -> None:
    with Sandbox() as sandbox:
        sandbox.update_network([])
        with pytest.raises(PolicyViolation, match="made without a network"):
            sandbox.update_network(["site.test"])
        assert sandbox.connections() == []


def test_the_hosts_own_network_cannot_be_narrowed() -> None:
    policy = SandboxPolicyBuilder().allow_network().allow_process_spawn().build()
    with Sandbox(policy=policy) as sandbox:
        with pytest.raises(PolicyViolation, match="cannot be narrowed"):
            sandbox.update_network([])
        sandbox.update_network(policy)


async def test_a_connection_that_is_still_being_judged_is_cut_too() -> None:
    """The rules change while its name is looked up: whichever rules it was judged by, it does not come about."""
    log, request = ConnectionLog(), EgressRequest(parse_host("site.test"), 443)
    ours, theirs = socket.socketpair()
    with theirs, log.track(request) as connection:
        await in_thread(lambda: log.cut(Narrowing(())))
        stream = SocketStream(*await asyncio.open_connection(sock=ours))
        with pytest.raises(FetchFailed, match="no longer allowed"):
            connection.attach(stream)
        assert (await in_thread(lambda: theirs.recv(1))) == b""


def test_the_log_is_bounded() -> None:
    log = ConnectionLog()
    for port in range(1, MOST_CONNECTIONS + 101):
        log.add(EgressRequest(parse_host("site.test"), port), Decision(False, "x"))
    assert [item.port for item in log.connections()] == list(range(101, MOST_CONNECTIONS + 101))
