"""`sandbox.expose`: a port of the guest's, on the host's loopback and nowhere else."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import InvalidRequest
from warmcell.lifetime.portal import portal
from warmcell.lifetime.threads import in_thread
from warmcell.sessions.ports import LOOPBACK, MOST_CONNECTIONS, PortListener

if TYPE_CHECKING:
    from warmcell.backends.process.live import LiveCage


def checked_port(field: str, value: object, smallest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= 65_535:
        raise InvalidRequest(f"must be a whole number from {smallest} to 65535", field=field)
    return value


def listening(cage: Callable[[], LiveCage | None], guest_port: int, host_port: int, most: int) -> PortListener:
    """Whichever live cage the sandbox has when a connection comes takes it."""

    def connect() -> tuple[socket.socket, Future[dict[str, Any]]] | None:
        now = cage()
        return None if now is None else now.begin_connecting(guest_port)

    return PortListener(connect, host_port, max(1, min(most, MOST_CONNECTIONS)))


class AsyncExposedPort:
    """`url` leads to the guest's port for as long as this is open; it ends with the sandbox at the latest."""

    host = LOOPBACK

    def __init__(self, listener: PortListener, guest_port: int, on_closed: Callable[[AsyncExposedPort], None]) -> None:
        self._listener, self._on_closed = listener, on_closed
        self.guest_port = guest_port
        #: On the host.
        self.port = listener.port

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def aclose(self) -> None:
        """Ends its connections. May be called twice."""
        await in_thread(self._listener.close)
        self._on_closed(self)

    async def __aenter__(self) -> AsyncExposedPort:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<ExposedPort {self.url} -> {self.guest_port}>"


class ExposedPort:
    """The same for blocking code."""

    host = LOOPBACK

    def __init__(self, port: AsyncExposedPort) -> None:
        self._port = port
        self.guest_port, self.port = port.guest_port, port.port

    @property
    def url(self) -> str:
        return self._port.url

    def close(self) -> None:
        """Ends its connections. May be called twice."""
        portal.call(self._port.aclose)

    def __enter__(self) -> ExposedPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._port)
