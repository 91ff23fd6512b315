"""A client of a port that has sent its end and disconnects, while the guest neither answers nor closes."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.websockets import WebSocket, WebSocketDisconnect
from tests.helpers import PATIENCE

from warmcell.interfaces.serve.service import LOCAL_TENANT
from warmcell.interfaces.serve.v1 import terminals


async def test_the_connection_to_a_silent_guest_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """It kept one of the tenant's WebSockets until the guest closed it."""
    guest, ours = socket.socketpair()
    ours.setblocking(False)

    async def connect(port: int) -> socket.socket:
        return ours

    entry = SimpleNamespace(sandbox=SimpleNamespace(connect=connect))
    monkeypatch.setattr(terminals, "get_entry", lambda *_: entry)
    messages = [
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "text": '{"type": "end"}'},
        {"type": "websocket.disconnect", "code": 1006},
    ]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        pass

    scope = {"type": "websocket", "path_params": {"port": "80"}, "headers": [], "subprotocols": []}
    with guest:
        with pytest.raises(WebSocketDisconnect):
            await asyncio.wait_for(terminals.tunnel(WebSocket(scope, receive, send), LOCAL_TENANT), PATIENCE)
        assert guest.recv(1) == b""
