"""HttpPort: a port of a sandbox on a server, on the loopback of this host."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import cancel_at_every_await

from warmcell.interfaces.client.http_port import HttpPort

pytest.importorskip("websockets")


async def test_a_cancelled_caller_leaves_no_port_open() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1]
    connection: Any = SimpleNamespace(open_websocket=print)

    async def listen() -> HttpPort:
        port = HttpPort(connection, "/", lambda _: None)
        await port.listen(number)
        return port

    async for run in cancel_at_every_await(listen):
        if run.result is not None:
            await run.result.aclose()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", number), timeout=5)
