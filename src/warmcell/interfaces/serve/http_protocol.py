"""HTTP/1.1 with bounds on slow, idle and wasteful clients; used by `warmcell serve` and `warmcell mcp --http`."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from warmcell.interfaces.serve.middleware import Network, parse_networks
from warmcell.interfaces.serve.requests import MORE_BODY_SECONDS

MAX_HEAD = 64 * 1024
#: How long a request head may take, from the connection or its first byte.
HEAD_SECONDS = 15.0
#: How long the body may take after that, unless a route sets `MORE_BODY_SECONDS`. More than `requests.BODY_SECONDS`,
#: after which our own routes answer 408.
BODY_SECONDS = 75.0
#: A client that takes no byte of its response for so long is disconnected.
STALLED_SECONDS = 60.0
#: Larger amounts are passed on at once: only the transport's own buffer makes a writer pause.
MAX_COALESCED = 64 * 1024
#: A chunked body may have so many pieces, and one more for every so many bytes. Parsing a chunk takes 30 us.
FREE_CHUNKS, BYTES_PER_CHUNK = 4096, 64
Connection = Hashable


class CoalescingTransport:
    """Coalesce the writes of one event loop iteration: head, body and end of a response leave in one system call."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(bytes(data))
        self._size += len(data)
        if self._size > MAX_COALESCED:
            self.flush()

    def close(self) -> None:
        """Close after sending what was written."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._parts, self._size = [], 0
        self._transport.abort()

    def flush(self) -> None:
        """Send now, for callers that know that nothing more belongs to this piece."""
        parts, self._parts, self._size = self._parts, [], 0
        if parts:
            self._transport.write(b"".join(parts))


class ChunkLimit(h11.Connection):
    """Reject bodies in a flood of tiny chunks: a megabyte of them would block the event loop for half a minute."""

    _chunks = _body_bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._body_bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks += 1
            self._body_bytes += len(event.data)
            if self._chunks > FREE_CHUNKS + self._body_bytes // BYTES_PER_CHUNK:
                raise h11.RemoteProtocolError("the body has too many small chunks")
        return event


class StallGuard(asyncio.Protocol):
    """Abort a connection whose client takes nothing of a full send buffer. Put it before the protocol it guards."""

    transport: Any
    _stall: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall is None:
            self._check_progress(None)

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_stall_timer()
        super().connection_lost(exc)

    def _check_progress(self, before: int | None) -> None:
        """Nothing is added while the buffer is full, so it shrinks or is stalled."""
        size = self.transport.get_write_buffer_size()
        if before is not None and size >= before:
            self.transport.abort()
        else:
            later = asyncio.get_running_loop().call_later
            self._stall = later(STALLED_SECONDS, self._check_progress, size)

    def _stop_stall_timer(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


class DeadlineProtocol(StallGuard, H11Protocol):
    """Close connections whose request does not arrive, or whose response is not taken; uvicorn waits forever."""

    _timer: asyncio.TimerHandle | None = None
    _is_in_body = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        #: Where connections are counted.
        self._shares: ConnectionShares | None = getattr(self.server_state, "connection_limit", None)
        self.conn = ChunkLimit(h11.SERVER, self.config.h11_max_incomplete_event_size or MAX_HEAD)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(CoalescingTransport(transport, self.loop))  # type: ignore[arg-type]
        self._start_timer(HEAD_SECONDS)
        if self._shares is not None:
            self._make_room(self._shares)

    def _make_room(self, shares: ConnectionShares) -> None:
        """Close a connection if there are too many."""
        oldest = shares.add(self, (self.client or ("",))[0], len(self.connections))
        if oldest is not None:
            assert isinstance(oldest, DeadlineProtocol)
            oldest.transport.close()
            self.connections.discard(oldest)
            shares.remove(oldest)

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        was_in_body, self._is_in_body = self._is_in_body, self.conn.their_state is h11.SEND_BODY
        has_partial_head = self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]
        if self._is_in_body != was_in_body or not (self._is_in_body or has_partial_head):
            self._stop_timer()
        if self._timer is None and (self._is_in_body or has_partial_head):
            # Started once per head and body: a client that sends byte by byte does not extend its deadline.
            self._start_timer(BODY_SECONDS if self._is_in_body else HEAD_SECONDS)
        if self._shares is not None and not self.is_idle:
            self._shares.mark_busy(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._leave_shares()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._leave_shares()
        super().handle_websocket_upgrade(event)

    def _leave_shares(self) -> None:
        if self._shares is not None:
            self._shares.remove(self)

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]  # do not wait for the rest of this loop iteration
        super().on_response_complete()
        if self._shares is not None and self.is_idle:
            self._shares.mark_idle(self)

    def _start_timer(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._end_late)

    def _end_late(self) -> None:
        scope: Any = self.scope
        more = scope.pop(MORE_BODY_SECONDS, 0.0) if self._is_in_body else 0.0
        if more:
            self._start_timer(more)
        else:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ConnectionShares:
    """Limits the connections of all clients, and of each address that is not a trusted proxy.

    The longest idle connection is closed first, so that idle clients cannot lock others out. Takes constant time,
    however many there are: each new one asks which connection makes room for it.
    """

    def __init__(self, of_all: int, trusted_proxies: str) -> None:
        self.of_all, self.of_one_address = of_all, share_of_address(of_all)
        self._trusted = parse_networks(trusted_proxies)
        self._networks: dict[Connection, Network | None] = {}
        self._counts: Counter[Network | None] = Counter()
        #: Idle connections, the longest idle first: of all, and by network.
        self._idle: dict[Connection, None] = {}
        self._idle_of: defaultdict[Network | None, dict[Connection, None]] = defaultdict(dict)

    def add(self, connection: Connection, address: str, total: int) -> Connection | None:
        """Add an idle connection and return the one to close, if any. `total` is the number in the server.

        If the address has more than its share, it is one of its own; if none of those is idle, the new one.
        """
        network = limited_network(address, self._trusted)
        self._networks[connection] = network
        self._counts[network] += 1
        self.mark_idle(connection)
        if network is not None and self._counts[network] > self.of_one_address:
            return self._longest_idle(self._idle_of[network], connection) or connection
        return self._longest_idle(self._idle, connection) if total > self.of_all else None

    @staticmethod
    def _longest_idle(idle: dict[Connection, None], new: Connection) -> Connection | None:
        return next((each for each in idle if each is not new), None)

    def mark_idle(self, connection: Connection) -> None:
        if connection in self._networks:  # else it is being closed
            self.mark_busy(connection)
            self._idle[connection] = self._idle_of[self._networks[connection]][connection] = None

    def mark_busy(self, connection: Connection) -> None:
        if self._idle.pop(connection, self) is None:
            network = self._networks[connection]
            del self._idle_of[network][connection]
            if not self._idle_of[network]:
                del self._idle_of[network]

    def remove(self, connection: Connection) -> None:
        """Forget a connection that was closed or is no longer HTTP. May be called twice."""
        if connection in self._networks:
            self.mark_busy(connection)
            network = self._networks.pop(connection)
            self._counts[network] -= 1
            if not self._counts[network]:
                del self._counts[network]


def share_of_address(of_all: int) -> int:
    """How many of all connections one address may have."""
    return max(1, of_all * 3 // 4)


def limited_network(address: str, trusted: Sequence[Network]) -> Network | None:
    """The network that has a share; None for a Unix socket or a trusted proxy."""
    network = network_of(address)
    if network is not None and any(network.overlaps(each) for each in trusted):  # type: ignore[arg-type]
        return None
    return network


@functools.lru_cache(4096)
def network_of(address: str) -> Network | None:
    """The client's network; None for a Unix socket. A client with IPv6 usually has 64 bits of addresses."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return ipaddress.ip_network((parsed, 32 if parsed.version == 4 else 64), strict=False)
