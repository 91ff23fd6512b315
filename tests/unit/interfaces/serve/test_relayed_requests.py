"""Requests that one process of a server relays to another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from warmcell.interfaces.serve.front.relay import Peer, relay
from warmcell.interfaces.serve.middleware import RELAYED, ProxyHeaders
from warmcell.interfaces.serve.settings import Settings


@pytest.mark.parametrize("headers", [[], [(b"host", b"example.org")]], ids=["HTTP/1.0", "HTTP/1.1"])
async def test_a_request_has_a_host(tmp_path: Path, headers: list[tuple[bytes, bytes]]) -> None:
    """Without one it was not sent, and its client got an error about a lost worker after 15 s."""
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    body: list[dict[str, Any]] = [{"type": "http.request", "body": b"", "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        while not body:
            await asyncio.sleep(60)
        return body.pop()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    path = str(tmp_path / "s")
    scope = {"type": "http", "method": "GET", "path": "/x", "raw_path": b"/x", "query_string": b"", "headers": headers}
    async with await asyncio.start_unix_server(answer, path), asyncio.timeout(20):
        await relay(Peer("the other", path), scope, receive, send)
    assert sent[0]["status"] == 200 and b"".join(message["body"] for message in sent[1:]) == b"ok"
    assert heads[0].lower().count(b"\r\nhost:") == 1


@pytest.mark.parametrize(
    ("kind", "state", "path", "expected"),
    [
        ("http", {}, "/sandboxes/sandboxes/1", "/sandboxes/1"),
        ("http", {RELAYED: True}, "/sandboxes/1", "/sandboxes/1"),
        ("websocket", {RELAYED: True}, "/sandboxes/v1/run/ws", "/v1/run/ws"),
    ],
    ids=["of a client", "relayed", "relayed as it came"],
)
async def test_the_prefix_of_the_public_url_is_removed_once(
    kind: str, state: dict[str, bool], path: str, expected: str
) -> None:
    """Each process removed it: below `/sandboxes`, an example in the manual, no worker found E2B's `/sandboxes/ID`."""
    found: list[tuple[str, bytes]] = []

    async def app(scope: Any, receive: object, send: object) -> None:
        found.append((scope["path"], scope["raw_path"]))

    guard = ProxyHeaders(app, Settings(public_url="https://example.org/sandboxes"))
    await guard({"type": kind, "path": path, "raw_path": path.encode(), "headers": [], "state": state}, None, None)
    assert found == [(expected, expected.encode())]
