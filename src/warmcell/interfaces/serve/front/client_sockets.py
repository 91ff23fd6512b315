"""Connections of clients as an event loop sees them: it reports their end, and notes their phase for the front."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from warmcell.interfaces.serve.front.connection_states import NO_ROUTE, ConnectionStates, Phase
from warmcell.interfaces.serve.http_protocol import DeadlineProtocol
from warmcell.interfaces.serve.middleware import RELAYED

#: A key in the state of a scope: the `ClientSocket` that a worker received from the front.
CONNECTION = "warmcell.connection"


class ClientSocket(socket.socket):
    """Calls `on_close` once when it is closed, whichever protocol it has by then."""

    def __init__(self, descriptor: int, on_close: Callable[[], object]) -> None:
        super().__init__(fileno=descriptor)
        self.setblocking(False)
        self._on_close: Callable[[], object] | None = on_close

    def close(self) -> None:
        super().close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


class WorkerSocket(ClientSocket):
    """In a worker. `mark` keeps the front informed in case this process is killed."""

    def __init__(self, descriptor: int, slot: int, states: ConnectionStates, on_close: Callable[[], object]) -> None:
        super().__init__(descriptor, on_close)
        self._slot, self._states = slot, states

    def mark(self, phase: Phase, route: int = NO_ROUTE) -> None:
        if self.fileno() >= 0:  # after that the slot belongs to another connection
            self._states.set(self._slot, phase, route)


class ClientProtocol(DeadlineProtocol):
    """A client's connection in a worker."""

    def __init__(self, connection: WorkerSocket, config: Any, server_state: Any, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, {**app_state, CONNECTION: connection})
        self._connection = connection

    def data_received(self, data: bytes) -> None:
        if self.is_idle:
            self._connection.mark(Phase.REQUEST)
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._connection.mark(Phase.IDLE)
        super().on_response_complete()


class RelayedProtocol(DeadlineProtocol):
    """A connection from another process of this server, which says for which client it asks."""

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, {**app_state, RELAYED: True}, _loop)
