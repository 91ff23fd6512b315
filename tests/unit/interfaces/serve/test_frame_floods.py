"""A flood of tiny WebSocket frames is parsed in pieces, and other connections are served between them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from tests.helpers import until_async
from uvicorn.server import ServerState

from warmcell.interfaces.serve.listener import find_websocket_protocol

EMPTY = b"\x82\x80\0\0\0\0"
HEAD = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)


class _Transport(asyncio.Transport):
    is_reading = True
    is_closed = False

    def write(self, data: Any) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


class _Application:
    """Accepts a WebSocket and counts its messages while `is_reading` is set."""

    def __init__(self) -> None:
        self.received, self.is_reading = 0, asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        await self.is_reading.wait()
        while (await receive())["type"] == "websocket.receive":
            self.received += 1


@pytest.mark.attack("S3-15")
async def test_frames_are_parsed_in_pieces() -> None:
    application, transport, count = _Application(), _Transport(), 40_000
    config = uvicorn.Config(application, lifespan="off", log_config=None, ws_ping_interval=None)
    config.load()
    protocol = find_websocket_protocol()(config, ServerState(), {})
    protocol.connection_made(transport)
    protocol.data_received(HEAD)
    await until_async(lambda: protocol.handshake_complete)

    protocol.data_received(EMPTY * count)
    assert protocol.queue.qsize() < 1000, "all frames were parsed at once"
    assert not transport.is_reading, "more is read while this is parsed"
    application.is_reading.set()
    await asyncio.sleep(0)
    assert not transport.is_reading
    await until_async(lambda: application.received == count)
    assert transport.is_reading
    protocol.data_received(EMPTY + b"\x88\x80\0\0\0\0" + EMPTY * count)  # nothing after the end is parsed
    await until_async(lambda: transport.is_closed and not protocol._unread)
    protocol.connection_lost(None)
    await until_async(lambda: not protocol.tasks)
    assert application.received <= count + 1
