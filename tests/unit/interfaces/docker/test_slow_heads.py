"""Clients of the Docker socket that send a request byte by byte."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from warmcell.interfaces.docker import connection
from warmcell.interfaces.docker.connection import Connection, LargeBodies
from warmcell.interfaces.serve.http_protocol import ConnectionShares


async def test_a_head_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one for each byte: 32 KiB of them would hold a connection for days."""
    monkeypatch.setattr(connection, "_HEAD_SECONDS", 0.5)
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)

    async def answer(_: Any) -> Any:
        raise AssertionError("the request is never complete")

    served = Connection(reader, writer, lambda _: False, answer, LargeBodies(), ConnectionShares(1, ""))
    serving = asyncio.ensure_future(served.serve())
    with theirs:
        theirs.sendall(b"GET /info HTTP/1.1\r\n")
        for _ in range(100):
            await asyncio.wait({serving}, timeout=0.1)
            if serving.done():
                break
            theirs.sendall(b"x")
    assert serving.done()
    await serving
