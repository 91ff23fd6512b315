"""WebSockets: terminals, runs with interactive input, ports; and rejected clients."""

from __future__ import annotations

import json
import os
import signal
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import create_connection
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.helpers import eventually, until
from tests.serve.conftest import Server, make_token
from tests.serve.requests import create_sandbox, is_running
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

RUN = {"language": "python", "code": "print('you said', input())", "timeout": 30}

ASKING = """
import sys
name = input('who? ')
print('hello', name)
print(sys.stdin.read(), file=sys.stderr)
print(open('f').read())
"""
TURNING_ROUND = """
import socket
listening = socket.create_server(('127.0.0.1', 8200))
print('up', flush=True)
while True:
    client, _ = listening.accept()
    data = b''
    while piece := client.recv(9999):
        data += piece
    client.sendall(data[::-1])
    client.close()
"""


def open_socket(server: Server, path: str, **more: Any) -> ClientConnection:
    return connect(server.url.replace("http", "ws") + path, open_timeout=30, proxy=None, **more)


def receive(socket: ClientConnection, until: bytes) -> bytes:
    """The bytes of both channels, until they have `until` in them."""
    found = b""
    while until not in found:
        message = socket.recv(timeout=30)
        assert isinstance(message, bytes), message
        assert message[:1] in (b"\1", b"\2")
        found += message[1:]
    return found


def last(socket: ClientConnection) -> dict[str, Any]:
    """The last message, which is a text."""
    message: Any = b""
    try:
        while True:
            message = socket.recv(timeout=30)
    except ConnectionClosed:
        assert isinstance(message, str), message
        found: dict[str, Any] = json.loads(message)
        return found


@pytest.fixture(scope="module")
def at(server: Server) -> Iterator[str]:
    where = create_sandbox(server.client)
    yield where
    server.client.delete(where)


def test_a_program_that_does_not_read_can_be_killed(server: Server) -> None:
    with open_socket(server, "/v1/run/ws") as socket:
        socket.send(json.dumps(RUN | {"code": "print('up', flush=True)\nimport time\ntime.sleep(60)", "timeout": 60}))
        receive(socket, b"up")
        for _ in range(3):
            socket.send(bytes(200_000))
        socket.send(json.dumps({"type": "kill"}))
        result = last(socket)
    assert result["type"] == "result" and result["exit_code"] == 137


def test_input_before_a_disconnect_reaches_the_process(server: Server, at: str) -> None:
    made = server.client.post(f"{at}/processes", json={"command": ["sh", "-c", "sleep 0.5; wc -c"]}).json()
    process = f"{at}/processes/{made['pid']}"
    with open_socket(server, f"{process}/ws") as socket:
        for _ in range(3):
            socket.send(bytes(100_000))
        socket.send(json.dumps({"type": "close_stdin"}))
    result = server.client.get(f"{process}/wait", params={"timeout": 60}).json()
    assert result["stdout"].strip() == "300000"


def test_a_terminal_in_both_directions(server: Server, at: str) -> None:
    asked = {"command": ["sh"], "pty": {"cols": 80, "rows": 24}, "env": {"PS1": "$ "}}
    process = f"{at}/processes/{server.client.post(f'{at}/processes', json=asked).json()['pid']}"
    with open_socket(server, f"{process}/ws") as socket:
        socket.send(json.dumps({"type": "resize", "cols": 101, "rows": 41}))
        socket.send(b"stty size\n")
        receive(socket, b"41 101")
    assert server.client.get(process).json()["is_running"] is True  # it goes on when its client goes
    with open_socket(server, f"{process}/ws") as again:
        receive(again, b"41 101")
        again.send(b"cat\n" + b"x" * 60 + b"\n")
        receive(again, b"x" * 60)
        again.send(json.dumps({"type": "kill"}))
        assert last(again)["signal"] == signal.SIGKILL
        assert again.close_code == 1000


def test_a_program_is_fed_while_it_runs(server: Server) -> None:
    with open_socket(server, "/v1/run/ws") as socket:
        socket.send(json.dumps(RUN | {"code": ASKING, "files": {"f": "content"}}))
        assert receive(socket, b"who? ") == b"who? "
        socket.send(b"you\n")
        receive(socket, b"hello you\n")
        socket.send(b"rest")
        socket.send(json.dumps({"type": "close_stdin"}))
        found = last(socket)
    assert (found["type"], found["status"], found["exit_code"]) == ("result", "success", 0)
    assert (found["stdout"], found["stderr"]) == ("who? hello you\ncontent\n", "rest\n")
    with open_socket(server, "/v1/run/ws") as socket:
        socket.send(json.dumps(RUN | {"code": "while True: pass", "timeout": 0.5}))
        assert last(socket)["status"] == "timeout"


@pytest.mark.attack("PT-09")
def test_a_run_ends_with_its_socket(server: Server) -> None:
    mark = f"gone-{os.getpid()}-{time.monotonic_ns()}"
    with open_socket(server, "/v1/run/ws") as socket:
        socket.send(json.dumps(RUN | {"language": "command", "code": f"echo up; exec -a {mark} sleep 300"}))
        receive(socket, b"up")
        assert eventually(lambda: is_running(mark))
    assert eventually(lambda: not is_running(mark))


@pytest.mark.attack("PT-09", "S3-16")
def test_a_run_that_waits_for_its_slot_ends_with_its_socket(start_server: Callable[..., Any], tmp_path: Path) -> None:
    """Also if the client has sent input that the program would read."""
    tokens = tmp_path / "tokens.json"
    secret = make_token(tokens, "one", "--runs", "1", "--scope=run", "--scope=metrics")
    with start_server("--tokens", str(tokens)) as server:
        headers = {"authorization": f"Bearer {secret}"}

        def waits() -> bool:
            return "warmcell_runs_waiting 1.0" in server.client.get("/metrics", headers=headers).text

        with open_socket(server, "/v1/run/ws", additional_headers=headers) as first:
            first.send(json.dumps(RUN | {"code": "print('up', flush=True); input()", "timeout": 300}))
            receive(first, b"up")
            for _ in range(3):
                with open_socket(server, "/v1/run/ws", additional_headers=headers) as other:
                    other.send(json.dumps(RUN))
                    other.send(b"x" * 100_000)
                    until(waits)
                until(lambda: not waits())
            first.send(b"\n")
            assert last(first)["exit_code"] == 0


@pytest.mark.attack("PT-15")
@pytest.mark.parametrize(
    "first",
    ["", "{", "[]", '{"language": "python"}', json.dumps(RUN | {"timeout": 1e9}), json.dumps(RUN | {"x": 1}), b"\xff"],
    ids=["nothing", "cut", "list", "no code", "for ever", "unknown", "bytes"],
)
def test_what_is_no_run_is_refused(server: Server, first: str | bytes) -> None:
    with open_socket(server, "/v1/run/ws") as socket:
        socket.send(first)
        found = last(socket)
        assert (found["type"], found["error"]["fault"]) == ("error", "caller")
        assert socket.close_code == 1008


@pytest.mark.attack("PT-15")
def test_what_is_said_to_a_process_is_bounded(server: Server, at: str) -> None:
    process = f"{at}/processes/{server.client.post(f'{at}/processes', json={'command': 'sleep 60'}).json()['pid']}"
    for text in ("no", '{"type": "explode"}', '{"type": "resize", "cols": 0, "rows": 1}', "[" * 10_000, '{"type": []}'):
        with open_socket(server, f"{process}/ws") as socket:
            socket.send(text)
            assert "must be a JSON object" in last(socket)["error"]["message"]
    with open_socket(server, f"{process}/ws") as socket:
        socket.send(b"x" * ((1 << 20) + 1))
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=30)
        assert socket.close_code == 1009
    with open_socket(server, f"{process}/ws") as socket:
        socket.send(json.dumps({"type": "resize", "cols": 80, "rows": 24}))
        assert json.loads(socket.recv(timeout=30))["type"] == "refused"  # it has no terminal, and goes on
    server.client.delete(process)


def test_a_port_through_a_tunnel(server: Server, at: str) -> None:
    command = ["python3", "-c", TURNING_ROUND]
    process = f"{at}/processes/{server.client.post(f'{at}/processes', json={'command': command}).json()['pid']}"
    with open_socket(server, f"{process}/ws") as socket:
        receive(socket, b"up")
    with open_socket(server, f"{at}/ports/8200/ws") as socket:
        socket.send(b"abc")
        socket.send(b"def")
        socket.send(json.dumps({"type": "end"}))
        assert socket.recv(timeout=30) == b"fedcba"
        assert last(socket) == {"type": "end"}
    with pytest.raises(InvalidStatus) as refused:
        open_socket(server, f"{at}/ports/8201/ws")
    assert refused.value.response.status_code == 502
    server.client.delete(process)


@pytest.mark.attack("S2-31")
@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "https://127.0.0.1"}],
    ids=str,
)
def test_other_peoples_pages_get_no_socket(server: Server, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidStatus) as refused:
        open_socket(server, "/v1/run/ws", additional_headers=headers)
    assert refused.value.response.status_code == 403


@pytest.mark.attack("S2-31")
def test_a_name_that_leads_to_loopback_gets_no_socket(server: Server) -> None:
    address = urlsplit(server.url)
    with (
        create_connection((address.hostname, address.port), timeout=30) as way,
        pytest.raises(InvalidStatus) as refused,
    ):
        connect(f"ws://evil.example:{address.port}/v1/run/ws", sock=way, open_timeout=30)
    assert refused.value.response.status_code == 403


def test_its_own_page_gets_one(server: Server) -> None:
    with open_socket(server, "/v1/run/ws", origin=server.url) as socket:
        socket.send(json.dumps(RUN | {"code": "print(1)"}))
        assert last(socket)["stdout"] == "1\n"


@pytest.mark.attack("S2-30")
def test_sockets_need_the_token_and_the_sandbox(start_server: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    tokens = [make_token(file, "one"), make_token(file, "two", "--scope", "sandbox")]
    with start_server("--tokens", str(file)) as server:
        one = {"Authorization": f"Bearer {tokens[0]}"}
        at = f"/v1/sandboxes/{server.client.post('/v1/sandboxes', json={}, headers=one).json()['id']}"
        pid = server.client.post(f"{at}/processes", json={"command": "cat"}, headers=one).json()["pid"]
        asked = {"none": None, "wrong": "wc_wrong", "two": tokens[1]}
        for name, token in asked.items():
            named = {} if token is None else {"subprotocols": ["warmcell", as_subprotocol(token)]}
            for path in (f"{at}/processes/{pid}/ws", f"{at}/ports/80/ws", "/v1/run/ws"):
                with pytest.raises(InvalidStatus) as refused:
                    open_socket(server, path, **named)
                known = 403 if path == "/v1/run/ws" else 404
                assert refused.value.response.status_code == (known if name == "two" else 401)
        with open_socket(server, f"{at}/processes/{pid}/ws", additional_headers=one) as socket:
            socket.send(b"by header\n")
            receive(socket, b"by header\n")
        named = {"subprotocols": ["warmcell", as_subprotocol(tokens[0])]}
        with open_socket(server, f"{at}/processes/{pid}/ws", **named) as socket:
            assert socket.subprotocol == "warmcell"  # and never the token
            receive(socket, b"by header\n")
            server.process.send_signal(signal.SIGTERM)  # endless streams are notified, and end
            assert last(socket)["error"]["code"] == "http.503"
        assert server.process.wait(60) == 0


def as_subprotocol(token: str) -> str:
    return "warmcell.bearer." + urlsafe_b64encode(token.encode()).decode().rstrip("=")
