"""In the front: the connections of clients. Each is passed to a worker, which then answers without the front.

The front keeps its own descriptor of each, so that the connection survives the worker: an idle one is passed to another
worker, and the client of a request that was lost gets an error.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from warmcell.interfaces.serve.e2b.connect import CONNECT
from warmcell.interfaces.serve.front.client_sockets import ClientSocket, response_bytes
from warmcell.interfaces.serve.front.relay import EVENT_STREAM, last_event, make_lost_error
from warmcell.interfaces.serve.front.shared_memory import (
    NO_ROUTE,
    ConnectionState,
    ConnectionStates,
    Phase,
    make_states_file,
)
from warmcell.interfaces.serve.http_protocol import limited_network, share_of_address
from warmcell.interfaces.serve.middleware import Network, parse_networks
from warmcell.interfaces.serve.responses import error_response
from warmcell.interfaces.serve.routing import AuthRoute

_STREAMS = {Phase.EVENTS: EVENT_STREAM, Phase.CONNECT: CONNECT}
#: As many workers as processors start fewer runs a second than half as many. So the second half gets connections only
#: when each of the first half has this many, but its share of sandboxes at any time.
_ENOUGH_CONNECTIONS = 16


class Recipient:
    """One worker process: connections are sent over `channel` while it is ready. `number` is the worker's."""

    def __init__(self, channel: socket.socket, number: int = 0) -> None:
        self.channel = channel
        self.connections: dict[int, socket.socket] = {}
        busy_workers = max(4, len(os.sched_getaffinity(0)) // 2)
        self._handicap = 0 if number < busy_workers else _ENOUGH_CONNECTIONS

    @property
    def load(self) -> int:
        return len(self.connections) + self._handicap


class ClientConnections:
    """Belongs to the front's event loop. `serve_here` serves a connection in the front, where no worker can."""

    def __init__(
        self,
        limit: int,
        routes: Sequence[AuthRoute],
        serve_here: Callable[[ClientSocket], object],
        trusted_proxies: str = "",
    ) -> None:
        """`limit`: of all connections. One address has a share of it, unless it is a trusted proxy."""
        self._limit, self._routes, self._serve_here = limit, routes, serve_here
        self._share, self._trusted = share_of_address(limit), parse_networks(trusted_proxies)
        #: By slot: the network of the client. How many connections a network has, without evicted ones.
        self._networks: dict[int, Network | None] = {}
        self._counts: Counter[Network | None] = Counter()
        # An evicted connection keeps its slot until its worker has closed it.
        self._free_slots = list(range(2 * limit))
        self.states_file = make_states_file(2 * limit)
        self._states = ConnectionStates(self.states_file)
        self._recipients: set[Recipient] = set()
        self._evicted: set[int] = set()
        self._here = 0
        #: TLS ends in the worker, so the front cannot add to its responses.
        self.is_encrypted = False
        self.is_closed = False

    def __len__(self) -> int:
        return self._here - len(self._evicted) + sum(len(each.connections) for each in self._recipients)

    @property
    def is_over_limit(self) -> bool:
        return len(self) > self._limit

    def add_recipient(self, recipient: Recipient) -> None:
        self._recipients.add(recipient)

    def stop_passing_to(self, recipient: Recipient) -> None:
        self._recipients.discard(recipient)

    def place(self, connection: socket.socket) -> None:
        """Pass it to the worker with the least load. If there are too many, close the longest idle one.

        An address with more than its share loses one of its own; if none of those is idle, the new one.
        """
        network = None if self.is_closed else self._network_of(connection)
        is_crowded = network is not None and self._counts[network] >= self._share
        if self.is_closed or (is_crowded and not self._evict_idle(network)):
            connection.close()
            return
        if len(self) >= self._limit:
            self._evict_idle()
        if len(self) >= self._limit or not self._send_to_worker(connection, network):
            self._here += 1
            self._counts[network] += 1
            self._serve_here(ClientSocket(connection.detach(), partial(self._forget_here, network)))

    def _network_of(self, connection: socket.socket) -> Network | None:
        try:
            name = connection.getpeername()
        except OSError:  # the client has disconnected already
            return None
        return limited_network(name[0], self._trusted) if isinstance(name, tuple) else None

    def _send_to_worker(self, connection: socket.socket, network: Network | None) -> bool:
        recipient = min(self._recipients, key=lambda each: each.load, default=None)
        if recipient is None or not self._free_slots:
            return False
        slot = self._free_slots.pop()
        self._states.set(slot, Phase.IDLE)
        try:
            socket.send_fds(recipient.channel, [slot.to_bytes(4, "little")], [connection.fileno()])
        except OSError:  # it has just exited, or does not keep up
            self._free_slots.append(slot)
            return False
        recipient.connections[slot] = connection
        self._networks[slot] = network
        self._counts[network] += 1
        return True

    def _forget_here(self, network: Network | None) -> None:
        self._here -= 1
        self._uncount(network)

    def _uncount(self, network: Network | None) -> None:
        self._counts[network] -= 1
        if not self._counts[network]:
            del self._counts[network]

    def _evict_idle(self, network: Network | None = None) -> bool:
        """Close the longest idle connection, of this network if one is given. False if none is idle."""
        idle: list[tuple[float, int, socket.socket]] = []
        for recipient in self._recipients:
            for slot, connection in recipient.connections.items():
                if slot in self._evicted or network not in (None, self._networks[slot]):
                    continue
                state = self._states.get(slot)
                if state.phase is Phase.IDLE:
                    idle.append((state.since, slot, connection))
        if not idle:
            return False
        _, slot, connection = min(idle, key=lambda each: each[:2])
        self._evicted.add(slot)
        self._uncount(self._networks[slot])
        with suppress(OSError):  # the client has disconnected already
            connection.shutdown(socket.SHUT_RDWR)
        return True

    def close_one(self, recipient: Recipient, slot: int) -> None:
        """The worker has closed the connection: close it here too, which ends it for the client."""
        self._release(slot)
        recipient.connections.pop(slot).close()

    def remove_recipient(self, recipient: Recipient) -> None:
        """The worker process has ended: answer its clients, and give its idle connections to others."""
        self.stop_passing_to(recipient)
        recipient.channel.close()
        for slot, connection in recipient.connections.items():
            state = self._states.get(slot)
            is_evicted = slot in self._evicted
            self._release(slot)
            if state.phase is Phase.IDLE and not is_evicted and not self.is_encrypted:
                self.place(connection)
            else:
                self._end(connection, b"" if self.is_encrypted else self._final_bytes(state))

    def _release(self, slot: int) -> None:
        network = self._networks.pop(slot)
        if slot in self._evicted:
            self._evicted.remove(slot)
        else:
            self._uncount(network)
        self._free_slots.append(slot)

    def _final_bytes(self, state: ConnectionState) -> bytes:
        """The bytes that complete the response of a lost worker."""
        if state.phase is Phase.REQUEST:
            render = error_response if state.route == NO_ROUTE else self._routes[state.route].render_error
            return response_bytes(render(make_lost_error()))
        event = last_event(_STREAMS.get(state.phase, ""), make_lost_error())
        return b"" if event is None else b"%x\r\n%s\r\n0\r\n\r\n" % (len(event), event)

    def _end(self, connection: socket.socket, last: bytes) -> None:
        with connection, suppress(OSError):  # the client has gone, or reads nothing
            connection.setblocking(False)
            if last:
                connection.send(last)
                _discard_input(connection)

    def close(self) -> None:
        """Release the shared memory. Called after the workers have ended."""
        self._states.close()
        os.close(self.states_file)


def _discard_input(connection: socket.socket) -> None:
    """Read what is unread: closing a socket with unread input resets it, and the client may lose the response."""
    connection.shutdown(socket.SHUT_WR)
    with suppress(BlockingIOError):
        while connection.recv(1 << 16):
            pass
