"""Which connection makes room for a new one. Takes constant time, however many there are: each new one asks."""

from __future__ import annotations

import functools
import ipaddress
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

from warmcell.interfaces.serve.proxy_headers import Network, parse_networks

Connection = Hashable


class ConnectionShares:
    """The connections of all clients, and of each address that is not a trusted proxy: so many there may be.

    The longest idle connection is closed first, so that idle clients cannot lock others out.
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
        """Add an idle connection and return the one to close, if any. `total`: how many the server has.

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
        """It is closed, or is no longer HTTP. May be called twice."""
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
    """The client's address; None for a Unix socket. A client with IPv6 usually has 64 bits of addresses."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return ipaddress.ip_network((parsed, 32 if parsed.version == 4 else 64), strict=False)
