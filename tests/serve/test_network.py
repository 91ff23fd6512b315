"""The network of sandboxes on a server: narrowed through the client, `/v1` and E2B, and seen."""

from __future__ import annotations

import http.server
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.serve.conftest import Server
from tests.serve.requests import Box

from warmcell import Client, NetworkRule, PolicyViolation

Start = Callable[..., AbstractContextManager[Server]]


class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"hi")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield site.server_port
        site.shutdown()


@pytest.fixture
def policy(tmp_path: Path, port: int) -> str:
    policy = tmp_path / "policy.json"
    rules = [{"domain": "127.0.0.1", "ports": [port]}, {"domain": "example.org", "ports": [443]}]
    policy.write_text(json.dumps({"allowProcessSpawn": True, "networkRules": rules}))
    return str(policy)


@pytest.fixture
def open_server(start_server: Start, policy: str) -> Iterator[Server]:
    with start_server("--policy", policy) as server:
        yield server


def ask(port: int) -> str:
    """A shell command that prints the status of a request through the proxy."""
    return (
        "python3 -c \"import socket; s = socket.create_connection(('127.0.0.1', 3128));"
        f" s.sendall(b'GET http://127.0.0.1:{port}/ HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n');"
        ' print(s.recv(99).split()[1].decode())"'
    )


def test_a_client_narrows_and_sees(open_server: Server, port: int) -> None:
    with Client(open_server.url) as client, client.sandbox() as sandbox:
        first = sandbox.sh(ask(port))
        assert first.stdout == "200\n"
        assert [(item.host, item.port, item.is_allowed) for item in first.connections] == [("127.0.0.1", port, True)]
        sandbox.update_network(["example.org"])
        assert sandbox.sh(ask(port)).stdout == "403\n"
        sandbox.update_network([NetworkRule("127.0.0.1", (port,), ("GET",))])
        assert sandbox.sh(ask(port)).stdout == "200\n"
        with pytest.raises(PolicyViolation, match=r"evil\.test"):
            sandbox.update_network(["evil.test"])
        found = sandbox.connections()
        assert [(item.host, item.port, item.is_allowed) for item in found] == [
            *[("127.0.0.1", port, True), ("127.0.0.1", port, False), ("127.0.0.1", port, True)]
        ]
        assert found[0].bytes_received > 20 and found[1].bytes_received == 0
        at = f"/v1/sandboxes/{sandbox.id}/network"
        for body, status in (({}, 422), ({"allow": [{"domain": "a b"}]}, 403), ({"allow": None}, 204)):
            assert open_server.client.put(at, json=body).status_code == status


def test_e2b_narrows_at_create_and_later(open_server: Server, port: int) -> None:
    everything = {"denyOut": ["0.0.0.0/0"]}
    closed = Box(open_server.client, network=everything)
    assert closed.run(ask(port))[1] == "403\n"
    one = Box(open_server.client, network={**everything, "allowOut": ["127.0.0.1"]})
    assert one.run(ask(port))[1] == "200\n"
    offline = Box(open_server.client, allow_internet_access=False)  # until an update, as in E2B
    assert offline.run(ask(port))[1] == "403\n"
    opened = {**everything, "allowOut": ["127.0.0.1"]}
    assert open_server.client.put(f"/sandboxes/{offline.id}/network", json=opened).status_code == 204
    assert offline.run(ask(port))[1] == "200\n"
    at = f"/sandboxes/{closed.id}/network"
    for body, said in (
        ({}, "200\n"),
        ({"denyOut": ["127.0.0.1"]}, "403\n"),
        ({"allow_internet_access": False}, "403\n"),
    ):
        assert open_server.client.put(at, json=body).status_code == 204
        assert closed.run(ask(port))[1] == said
    [fork] = open_server.client.post(f"/sandboxes/{closed.id}/fork", json={"count": 1, "timeout": 60}).json()
    closed.headers = {
        "e2b-sandbox-id": fork["sandbox"]["sandboxID"],
        "x-access-token": fork["sandbox"]["envdAccessToken"],
    }
    assert closed.run(ask(port))[1] == "403\n"  # as its original
    assert open_server.client.put(at, json={**everything, "allowOut": ["evil.test"]}).status_code == 403
    assert open_server.client.put(at, json={"denyOut": ["10.0.0.0/8"]}).status_code == 400


def test_a_sandbox_that_comes_back_after_a_restart_is_still_narrowed(
    start_server: Start, policy: str, port: int, tmp_path: Path
) -> None:
    options = ("--policy", policy, "--state", str(tmp_path / "state"))
    with start_server(*options) as server:
        box = Box(server.client, timeout=300)
        at = f"/v1/sandboxes/{server.client.post('/v1/sandboxes', json={}).json()['id']}"
        assert server.client.put(f"/sandboxes/{box.id}/network", json={"denyOut": ["0.0.0.0/0"]}).status_code == 204
        assert server.client.put(f"{at}/network", json={"allow": []}).status_code == 204
        server.stop(signal.SIGKILL)
    with start_server(*options) as server:
        box.client = server.client
        assert box.run(ask(port))[1] == "403\n"
        assert server.client.post(f"{at}/sh", json={"script": ask(port)}).json()["stdout"] == "403\n"
