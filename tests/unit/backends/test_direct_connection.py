"""The connection between a program and a node beside Ray: its handshake, what strangers get, and Ray's calls without it."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import PATIENCE, until_async
from tests.unit.backends.stand_in_nodes import ScriptedBackend

from warmcell import BackendUnavailable, ExecRequest, ExecutionFailed, NodeLost
from warmcell.backends.ray import direct_connection
from warmcell.backends.ray.direct_connection import Connection, DirectListener, Offer, connect
from warmcell.backends.ray.node_link import NodeLink
from warmcell.backends.ray.node_service import SANDBOXES, NodeService
from warmcell.backends.ray.placement import NodeInfo
from warmcell.backends.ray.ray_nodes import NodeActor, RayTransport
from warmcell.lifetime.temporary_directory import socket_directory

LOOPBACK = "127.0.0.1"
REQUEST = ExecRequest("python", "print(1)", 20)
LIMITS = ("_LISTEN_SECONDS", "_PROOF_SECONDS", "_CONNECT_SECONDS")
each_family = pytest.mark.parametrize("host", [None, LOOPBACK], ids=["unix", "tcp"])


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may fail because the machine is slow."""
    for name in LIMITS:
        monkeypatch.setattr(direct_connection, name, PATIENCE)


class Echo:
    """Serves connections by sending back what it receives."""

    def __init__(self) -> None:
        self.served = 0
        self.listener = DirectListener(self.serve)

    async def serve(self, connection: Connection) -> None:
        self.served += 1
        while True:
            await connection.send(await connection.receive())


async def open_streams(offer: Offer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(offer.address, str):
        return await asyncio.open_unix_connection(offer.address)
    return await asyncio.open_connection(*offer.address)


@each_family
async def test_messages_arrive_whole_and_in_order(host: str | None) -> None:
    connection = await connect(await Echo().listener.listen(host))
    payloads = [b"", b"one", bytes(range(256)) * 20_000, b"last"]

    async def send_all() -> None:
        for payload in payloads:
            await connection.send(payload)

    sending = asyncio.create_task(send_all())
    assert [await connection.receive() for _ in payloads] == payloads
    await sending
    connection.close()


@each_family
async def test_a_node_stops_listening_when_its_program_has_connected(host: str | None) -> None:
    echo = Echo()
    offer = await echo.listener.listen(host)
    connection = await connect(offer)
    await until_async(lambda: echo.served)
    with pytest.raises(OSError):
        await open_streams(offer)
    await connection.send(b"still here")
    assert await connection.receive() == b"still here"
    connection.close()


async def test_a_node_does_not_listen_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_connection, "_LISTEN_SECONDS", 0.01)
    offer = await Echo().listener.listen(LOOPBACK)
    with pytest.raises(OSError):
        while True:
            (await open_streams(offer))[1].close()
            await asyncio.sleep(0.01)


@each_family
async def test_a_peer_without_the_key_gets_nothing(host: str | None) -> None:
    echo = Echo()
    offer = await echo.listener.listen(host)
    with pytest.raises(ConnectionError):
        await connect(Offer(offer.address, bytes(32)))
    reader, writer = await open_streams(offer)
    writer.write(bytes(64))
    assert len(await reader.read()) == 64  # its challenge and its proof, which shows nothing of the key
    writer.close()
    assert not echo.served
    (await connect(offer)).close()  # it still waits for its program
    await until_async(lambda: echo.served)


async def test_peers_that_say_nothing_are_few_and_soon_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_connection, "_MOST_UNPROVED", 2)
    echo = Echo()
    offer = await echo.listener.listen(LOOPBACK)
    silent = [await open_streams(offer) for _ in range(2)]
    for reader, _ in silent:
        await reader.readexactly(32)  # both are being checked
    refused, its_writer = await open_streams(offer)
    assert await refused.read() == b""
    for _, writer in (*silent, (refused, its_writer)):
        writer.close()
    await until_async(lambda: not echo.listener._unproved)

    monkeypatch.setattr(direct_connection, "_PROOF_SECONDS", 0.01)
    reader, writer = await open_streams(offer)
    assert len(await reader.read()) <= 32
    writer.close()
    assert not echo.served


async def test_a_program_that_gave_up_is_not_served() -> None:
    """It uses Ray's calls: what a node sent over the connection would be lost."""
    echo = Echo()
    offer = await echo.listener.listen(LOOPBACK)
    given_up = Connection(*await open_streams(offer))
    await given_up.prove(offer.key, b"program", b"node")
    given_up.close()
    await until_async(lambda: not echo.listener._connections)
    assert not echo.served


@pytest.mark.parametrize("answer", [lambda data: data, lambda data: bytes(len(data))], ids=["its own bytes", "zeros"])
async def test_a_program_does_not_believe_another_server(answer: Callable[[bytes], bytes]) -> None:
    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(64):
            writer.write(answer(data))
        writer.close()

    async with await asyncio.start_server(pretend, LOOPBACK, 0) as server:
        address = (LOOPBACK, server.sockets[0].getsockname()[1])
        with pytest.raises(ConnectionError, match="does not have the key"):
            await connect(Offer(address, b"k" * 32))


# ---- over an actor ----


def make_backend() -> ScriptedBackend:
    return ScriptedBackend(lambda _: "done", 4)


class Actor:
    """Calls a `NodeActor` of this process as Ray would, and notes the calls."""

    def __init__(self) -> None:
        self._actor = NodeActor(pickle.dumps(make_backend))
        self.calls: list[str] = []
        #: Whether the node cannot be reached directly: by a program of its host, by others.
        self.is_hidden = {True: False, False: False}

    def __getattr__(self, name: str) -> Any:
        async def call(*values: Any) -> Any:
            self.calls.append(name)
            if name == "listen" and self.is_hidden[values[0]]:
                return pickle.dumps(Offer("/nonexistent/direct", b""))
            return await getattr(self._actor, name)(*values)

        return SimpleNamespace(remote=call)

    def drop_connections(self) -> None:
        for task in self._actor._listener._connections:
            task.cancel()


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> Actor:
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    util = SimpleNamespace(get_node_ip_address=lambda: LOOPBACK)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(util=util))
    return Actor()


async def open_link(actor: Actor) -> NodeLink:
    transport = RayTransport(SimpleNamespace(is_initialized=lambda: True, kill=lambda *_, **__: None), actor)
    return NodeLink(NodeInfo("a", LOOPBACK, 2, 0), await transport.start(), transport, lambda _: None)


#: Where the node cannot be reached, whether Ray uses TLS, and the calls of a run and the start before it.
WAYS: dict[str, tuple[tuple[bool, ...], str, list[str]]] = {
    "this host": ((), "0", ["start", "listen"]),
    "another host": ((True,), "0", ["start", "listen", "listen"]),
    "behind a firewall": ((True, False), "0", ["start", "listen", "listen", "submit", "take"]),
    "with TLS": ((True,), "1", ["start", "listen", "submit", "take"]),
}


@pytest.mark.parametrize("way", WAYS)
async def test_runs_take_the_shortest_way(way: str, actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, tls, calls = WAYS[way]
    actor.is_hidden |= dict.fromkeys(hidden, True)
    monkeypatch.setenv("RAY_USE_TLS", tls)
    link = await open_link(actor)
    for _ in range(3):
        assert (await link.call("run", REQUEST, False)).stdout == "done"
    assert list(dict.fromkeys(actor.calls)) == list(dict.fromkeys(calls))
    assert actor.calls.count("listen") == calls.count("listen")
    await link.close(NodeLost("a", "closed"))


async def test_the_end_of_the_connection_is_the_loss_of_the_node(actor: Actor) -> None:
    link = await open_link(actor)
    assert (await link.call("run", REQUEST, False)).stdout == "done"
    actor.drop_connections()
    await until_async(lambda: link.lost)
    assert isinstance(link.lost, NodeLost) and "the connection was closed" in str(link.lost)


async def test_a_client_that_leaves_ends_its_tunnel(actor: Actor) -> None:
    """The node waited for ever for room in its window: a task, a socket and a connection of its server stayed."""
    has_ended = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
        writer.close()
        has_ended.set()

    link, service = await open_link(actor), actor._actor._service
    assert service is not None
    with socket_directory("node") as directory:
        async with await asyncio.start_unix_server(flood, f"{directory}/server"):
            found: Any = asyncio.get_running_loop().create_future()
            found.set_result(SimpleNamespace(path=f"{directory}/server"))
            service._servers[SANDBOXES] = found
            reader, writer = await asyncio.open_unix_connection(await link.socket_path())
            await reader.readexactly(1)
            writer.close()
            await until_async(lambda: has_ended.is_set() and not service._tasks and not link._calls)
    assert link.lost is None
    await link.close(NodeLost("a", "closed"))


async def test_nothing_is_sent_by_a_node_whose_raylet_died(actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    link = await open_link(actor)
    assert (await link.call("run", REQUEST, False)).stdout == "done"
    monkeypatch.setattr("os.getppid", lambda: 1)
    with pytest.raises(NodeLost):
        await link.call("run", REQUEST, False)


@pytest.mark.parametrize(("is_dying", "wanted"), [(True, NodeLost), (False, ExecutionFailed)])
async def test_a_failure_of_the_host_counts_if_the_node_outlives_it(
    is_dying: bool, wanted: type[Exception], actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        if is_dying:
            raise RuntimeError("the actor died")

    async def fail(*_: Any, **__: Any) -> Any:
        raise ExecutionFailed("something outside killed it")

    monkeypatch.setattr(ScriptedBackend, "execute", fail)
    actor._actor.check = check
    link = await open_link(actor)
    with pytest.raises(wanted):
        await link.call("run", REQUEST, False)


async def test_closing_the_node_is_not_its_loss(actor: Actor) -> None:
    link = await open_link(actor)
    await link._transport.close()
    with pytest.raises(BackendUnavailable):  # of the node, whose answers still arrive
        await link.call("run", REQUEST, False)
    assert link.lost is None
    await link.close(NodeLost("a", "closed"))


async def test_a_request_that_a_node_cannot_read_fails_alone() -> None:
    service = NodeService(make_backend)
    service.submit(pickle.dumps([(7, b"cnowhere\nNothing\n."), (8, pickle.dumps(("run", REQUEST, False)))]))
    answers: dict[int, Any] = {}
    while len(answers) < 2:
        for message in pickle.loads(await service.take()):
            number, _, answers[number] = pickle.loads(message)
    assert isinstance(answers[7], ExecutionFailed) and "nowhere" in str(answers[7])
    assert answers[8].stdout == "done"
