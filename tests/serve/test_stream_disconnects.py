"""Clients of watches, output, files, ports and MCP that leave at every stage: nothing is left, and the next is right."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import until
from tests.serve.conftest import Server
from tests.serve.requests import create_sandbox, stream_events
from websockets.sync.client import connect

Start = Callable[..., AbstractContextManager[Server]]
LISTEN = """
import socket
listening = socket.create_server(('127.0.0.1', 8200))
print('up', flush=True)
while True:
    client, _ = listening.accept()
    client.sendall(b'right')
    client.close()
"""
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


@pytest.fixture(scope="module")
def own(start_server: Start) -> Iterator[Server]:
    """Its descriptors and processes are counted, so no other test uses it."""
    with start_server("--spares", "0") as server:
        yield server


def request_bytes(server: Server, method: str, path: str, body: bytes = b"", headers: str = "") -> bytes:
    at = httpx.URL(server.url)
    head = f"{method} {path} HTTP/1.1\r\nHost: {at.host}:{at.port}\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def leave_at_every_stage(server: Server, request: bytes, pieces: int = 6) -> None:
    """Cut the connection in the head, in the body, after the request, and after each of the first pieces of a response."""
    at = httpx.URL(server.url)
    stages: list[tuple[bytes, int]] = [(request[:size], 0) for size in range(1, len(request), len(request) // 5 + 1)]
    stages += [(request, received) for received in range(pieces)]
    for sent, received in stages:
        with socket.create_connection((at.host, at.port), timeout=60) as connection:
            connection.sendall(sent)
            for _ in range(received):
                connection.settimeout(1)
                try:
                    if not connection.recv(64):
                        break
                except TimeoutError:
                    break


class State:
    """The TCP connections and inotify instances of the server."""

    def __init__(self, server: Server) -> None:
        pid = server.process.pid
        lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
        connections = {f"socket:[{line.split()[9]}]" for line in lines}
        links = [_link(pid, number) for number in os.listdir(f"/proc/{pid}/fd")]
        self.counts = sum(link in connections for link in links), sum(link.endswith("inotify") for link in links)

    def __le__(self, other: State) -> bool:
        """Fewer connections are right too: the tests' own client closes idle ones."""
        return all(mine <= theirs for mine, theirs in zip(self.counts, other.counts, strict=True))


def _link(pid: int, number: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except FileNotFoundError:
        return ""


def test_watches(own: Server) -> None:
    at, numbers = create_sandbox(own.client), count()
    with stream_events(own.client, "GET", f"{at}/watch") as events:
        assert next(events)[0] == "ready"
    before = State(own)
    for _ in range(3):  # there may be four at a time
        leave_at_every_stage(own, request_bytes(own, "GET", f"{at}/watch?recursive=true"))
    until(lambda: State(own) <= before)
    with stream_events(own.client, "GET", f"{at}/watch") as events:
        assert next(events)[0] == "ready"
        name = f"f{next(numbers)}"
        own.client.put(f"{at}/files/{name}", content=b"")
        assert next(events)[1]["path"] == name
    own.client.delete(at)


def test_output_of_a_process(own: Server) -> None:
    at = create_sandbox(own.client)
    spawned = own.client.post(f"{at}/processes", json={"command": "seq 30000; sleep 300"}).json()["pid"]
    path = f"{at}/processes/{spawned}/output"
    before = State(own)
    leave_at_every_stage(own, request_bytes(own, "GET", path), 20)
    until(lambda: State(own) <= before)
    with stream_events(own.client, "GET", path) as events:
        text = ""
        while not text.endswith("30000\n"):
            text += next(events)[1]["text"]
    assert text == "".join(f"{number}\n" for number in range(1, 30001))
    waiting = request_bytes(own, "GET", f"{at}/processes/{spawned}/wait?timeout=60")
    leave_at_every_stage(own, waiting)
    assert own.client.delete(f"{at}/processes/{spawned}").status_code == 204
    until(lambda: State(own) <= before)
    own.client.delete(at)


def test_files(own: Server) -> None:
    at = create_sandbox(own.client)
    old, new = os.urandom(300_000), os.urandom(300_000)
    own.client.put(f"{at}/files/f", content=old)
    before = State(own)
    leave_at_every_stage(own, request_bytes(own, "GET", f"{at}/files/f"))
    upload = request_bytes(own, "PUT", f"{at}/files/f", new)
    leave_at_every_stage(own, upload[:-1], 0)  # never whole
    leave_at_every_stage(own, request_bytes(own, "POST", f"{at}/upload?path=f", new)[:-1], 0)
    assert own.client.get(f"{at}/files/f").content == old
    leave_at_every_stage(own, request_bytes(own, "GET", f"{at}/download?path=."))
    until(lambda: State(own) <= before)
    assert own.client.get(f"{at}/files/f").content == old
    assert [entry["name"] for entry in own.client.get(f"{at}/files").json()] == ["f"]
    own.client.delete(at)


def test_ports(own: Server) -> None:
    at = create_sandbox(own.client)
    spawned = own.client.post(f"{at}/processes", json={"command": ["python3", "-c", LISTEN]}).json()["pid"]
    with stream_events(own.client, "GET", f"{at}/processes/{spawned}/output") as events:
        assert next(events)[1]["text"] == "up\n"
    before = State(own)
    upgrade = (
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    )
    leave_at_every_stage(own, request_bytes(own, "GET", f"{at}/ports/8200/ws", headers=upgrade))
    until(lambda: State(own) <= before)
    url = own.url.replace("http", "ws") + f"{at}/ports/8200/ws"
    with connect(url, open_timeout=30, proxy=None) as opened:
        assert opened.recv(timeout=60) == b"right"
    own.client.delete(at)


def test_mcp(own: Server) -> None:
    pytest.importorskip("mcp")
    common = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
    headers = {"accept": "application/json, text/event-stream"}

    def begin() -> dict[str, str]:
        begun = own.client.post("/mcp", json=INITIALIZE, headers=headers)
        assert begun.status_code == 200, begun.text
        return headers | {"mcp-session-id": begun.headers["mcp-session-id"]}

    def call(session: dict[str, str], number: int, code: str) -> Any:
        arguments = {"name": "run_code", "arguments": {"language": "python", "code": code}}
        body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": arguments}
        return body, session

    session = begin()
    own.client.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
    body, _ = call(session, 2, "print('first')")
    assert "first" in own.client.post("/mcp", json=body, headers=session).text
    identity = f"Mcp-Session-Id: {session['mcp-session-id']}\r\n"
    for number in range(3):
        body, _ = call(session, 10 + number, "import time; print('abandoned'); time.sleep(0.2)")
        leave_at_every_stage(own, request_bytes(own, "POST", "/mcp", json.dumps(body).encode(), common + identity), 3)
    body, _ = call(session, 30, "print('right')")
    answer = own.client.post("/mcp", json=body, headers=session).text
    assert "right" in answer and "abandoned" not in answer
    assert own.client.delete("/mcp", headers=session).status_code == 200
    until(lambda: not own.client.get("/v1/activity").json()["runs"])
    until(lambda: not own.client.get("/v1/activity").json()["sandboxes"])


def test_sigterm_ends_it(own: Server) -> None:
    assert own.client.get("/healthz").status_code == 200  # it may have started for this test alone
    status, log = own.stop()
    assert (status, "Traceback" in log) == (0, False), log
    assert not Path(f"/proc/{own.process.pid}/task").exists()
