"""The front's side of client connections: who gets them, and what becomes of them when a worker ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from warmcell.interfaces.serve.front.client_connections import ClientConnections, Recipient
from warmcell.interfaces.serve.front.client_sockets import ClientSocket
from warmcell.interfaces.serve.front.placement import Placement
from warmcell.interfaces.serve.front.shared_memory import ConnectionStates, Phase
from warmcell.interfaces.serve.settings import Settings

ROUTES = Placement(Settings()).routes
RUN_CODE = next(number for number, route in enumerate(ROUTES) if route.path == "/run_code")


class Front:
    """Connections of at most three clients, workers that only receive, and clients to look at."""

    def __init__(self, limit: int = 3, trusted_proxies: str = "") -> None:
        self.here: list[ClientSocket] = []
        self.connections = ClientConnections(limit, ROUTES, self.here.append, trusted_proxies)
        self.states = ConnectionStates(self.connections.states_file)
        self.sockets: list[socket.socket] = []

    def add_worker(self, number: int = 0) -> tuple[Recipient, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in (ours, theirs):
            each.setblocking(False)
        recipient = Recipient(ours, number)
        self.connections.add_recipient(recipient)
        self.sockets += [ours, theirs]
        return recipient, theirs

    def connect(self) -> socket.socket:
        client, accepted = socket.socketpair()
        client.settimeout(20)
        self.connections.place(accepted)
        self.sockets.append(client)
        return client

    def connect_from(self, address: str) -> socket.socket:
        """Over TCP, from an address of loopback."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            client = socket.create_connection(listening.getsockname(), 20, (address, 0))
            self.connections.place(listening.accept()[0])
        self.sockets.append(client)
        return client

    def close(self) -> None:
        for each in (*self.sockets, *self.here):
            each.close()
        self.states.close()
        self.connections.close()


@pytest.fixture
def front() -> Iterator[Front]:
    made = Front()
    yield made
    made.close()


def received(channel: socket.socket) -> list[tuple[int, socket.socket]]:
    found = []
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(channel, 4, 1)
        except BlockingIOError:
            return found
        found.append((int.from_bytes(data, "little"), socket.socket(fileno=descriptors[0])))


def read_all(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))


def test_connections_go_to_the_worker_with_the_fewest(front: Front) -> None:
    front.connect()
    assert len(front.here) == 1  # nobody else was there
    (_, one), (_, other) = front.add_worker(), front.add_worker()
    clients = [front.connect(), front.connect()]
    pairs = received(one) + received(other)
    assert len(pairs) == 2 and len(front.connections) == 3
    for client in clients:
        client.send(b"x")
    for _, accepted in pairs:
        with accepted:
            assert accepted.recv(1) == b"x"


def test_a_connection_ends_for_its_client_when_the_worker_has_closed_it(front: Front) -> None:
    recipient, channel = front.add_worker()
    client = front.connect()
    ((slot, accepted),) = received(channel)
    accepted.close()
    front.connections.close_one(recipient, slot)
    assert client.recv(1) == b"" and len(front.connections) == 0


def test_the_longest_idle_one_makes_room(front: Front) -> None:
    recipient, channel = front.add_worker()
    busy, idle, later = (front.connect() for _ in range(3))
    slots = [slot for slot, accepted in received(channel) if accepted.close() is None]
    front.states.set(slots[0], Phase.REQUEST)
    front.states.set(slots[1], Phase.IDLE)
    front.states.set(slots[2], Phase.IDLE)
    newest = front.connect()
    assert idle.recv(1) == b"" and not front.here and not front.connections.is_over_limit
    for slot in (slots[2], *(slot for slot, accepted in received(channel) if accepted.close() is None)):
        front.states.set(slot, Phase.REQUEST)
    front.connect()
    assert len(front.here) == 1 and front.connections.is_over_limit
    front.connections.remove_recipient(recipient)
    for client in (busy, later, newest):
        assert client.recv(4096).startswith(b"HTTP/1.1 503 ")
    assert not front.connections.is_over_limit


def test_clients_of_a_lost_worker(front: Front) -> None:
    recipient, channel = front.add_worker()
    clients = [front.connect() for _ in range(3)]
    slots = [slot for slot, accepted in received(channel) if accepted.close() is None]
    clients[0].send(b"the rest of the body")
    front.states.set(slots[0], Phase.REQUEST, RUN_CODE)
    front.states.set(slots[1], Phase.EVENTS)
    front.states.set(slots[2], Phase.OTHER)
    front.connections.remove_recipient(recipient)
    answers = [read_all(client) for client in clients]
    assert answers[0].startswith(b"HTTP/1.1 504 ") and b"connection: close" in answers[0].lower()
    size, _, event = answers[1].partition(b"\r\n")
    assert int(size, 16) == len(event) - len(b"\r\n0\r\n\r\n") and event.startswith(b"event: error\n")
    assert answers[2] == b""


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_an_idle_connection_moves_to_another_worker(front: Front, is_encrypted: bool) -> None:
    """Not with TLS, whose state was in the worker."""
    front.connections.is_encrypted = is_encrypted
    recipient, channel = front.add_worker()
    client = front.connect()
    for _, accepted in received(channel):
        accepted.close()
    _, other = front.add_worker()
    front.connections.remove_recipient(recipient)
    moved = received(other)
    assert len(moved) == (not is_encrypted)
    if is_encrypted:
        assert client.recv(1) == b""
    for _, accepted in moved:
        with accepted:
            client.send(b"x")
            assert accepted.recv(1) == b"x"


def test_a_worker_that_does_not_keep_up_is_not_waited_for() -> None:
    front = Front(limit=3000)
    front.add_worker()
    while not front.here:
        front.connect()
    front.close()


def test_an_address_with_more_than_its_share_loses_its_own_connections() -> None:
    """As in a server of one process, see `test_connection_shares`."""
    front = Front(limit=4)
    recipient, channel = front.add_worker()
    other = front.connect_from("127.0.0.2")
    crowd = [front.connect_from("127.0.0.1") for _ in range(3)]
    slots = [slot for slot, accepted in received(channel) if accepted.close() is None]
    front.states.set(slots[1], Phase.REQUEST)
    crowd.append(front.connect_from("127.0.0.1"))
    assert crowd[1].recv(1) == b""  # the longest idle one of this address, not that of the other
    slots += [slot for slot, accepted in received(channel) if accepted.close() is None]
    for slot in slots[3:]:
        front.states.set(slot, Phase.REQUEST)
    refused = front.connect_from("127.0.0.1")
    assert read_all(refused) == b"" and not front.here  # none is idle
    for slot in slots:
        front.connections.close_one(recipient, slot)
    assert other.recv(1) == b"" and len(front.connections) == 0
    front.connect_from("127.0.0.1").send(b"x")
    ((_, accepted),) = received(channel)
    with accepted:
        assert accepted.recv(1) == b"x"
    front.close()


def test_a_trusted_proxy_has_no_share() -> None:
    front = Front(limit=4, trusted_proxies="127.0.0.0/8")
    _, channel = front.add_worker()
    clients = [front.connect_from("127.0.0.1") for _ in range(4)]
    for (_, accepted), client in zip(received(channel), clients, strict=True):
        with accepted:
            client.send(b"x")
            assert accepted.recv(1) == b"x"
    front.close()


def test_more_workers_than_help_get_connections_when_the_others_have_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    front = Front(limit=100)
    (first, _), (fifth, _) = front.add_worker(3), front.add_worker(4)
    clients = [front.connect() for _ in range(20)]
    assert (len(first.connections), len(fifth.connections)) == (18, 2)
    assert len(clients) == 20
    front.close()
