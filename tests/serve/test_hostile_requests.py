"""Whatever is sent, the answer is a 4xx that says why, and the next client is served (PT-15)."""

from __future__ import annotations

import json
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.conftest import Server

PLAIN = {"language": "python", "code": "print(1)", "timeout": 30}
JSON = {"content-type": "application/json"}
DOORS = ["/v1/run", "/v1/judge"]
pytestmark = pytest.mark.attack("PT-15")


def post(server: Server, path: str, body: bytes) -> httpx.Response:
    return server.client.post(path, content=body, headers=JSON)


def connect(server: Server) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port), timeout=30)


def error_of(answer: httpx.Response) -> dict[str, str]:
    assert 400 <= answer.status_code < 500, answer.text
    error: dict[str, str] = answer.json()["error"]
    assert error["message"] and error["fault"] == "caller"
    return error


@pytest.mark.parametrize("path", DOORS)
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nul", b"[]", b"7", b'"x"', b"\xff\xfe", b'{"a":' * 1000, b"[" * 100_000, b'{"code":"\\ud800"}'],
    ids=["empty", "cut", "word", "list", "number", "text", "not utf-8", "nested", "deep", "surrogate"],
)
def test_what_is_no_request_error_of(server: Server, path: str, body: bytes) -> None:
    error_of(post(server, path, body))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"timeout": "5"}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": 1e308}, "timeout"),
        ({"timeout": 301}, "timeout"),
        ({"timeout": None}, "timeout"),
        ({"language": 42}, "language"),
        ({"language": "../../bin/sh"}, "language"),
        ({"code": ""}, "code"),
        ({"code": "a\0b"}, "code"),
        ({"code": ["x"]}, "code"),
        ({"stdin": {"base64": "A"}}, "stdin"),
        ({"memory_limit_mb": 0}, "memory_limit_mb"),
        ({"limits": {"memory_mb": "1"}}, "limits"),
        ({"limits": {"gpus": 1}}, "limits"),
        ({"env": {"A=B": "c"}}, "env"),
        ({"env": {"A": 1}}, "env"),
        ({"files": {"../x": "y"}}, "../x"),
        ({"files": {"/etc/x": "y"}}, "/etc/x"),
        ({"files": {"x": {"base64": "!"}}}, "files"),
        ({"policy": {"allow_network": True}}, "policy"),
        ({"enforcer": None}, "enforcer"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(server: Server, change: dict[str, object], named: str) -> None:
    assert named in error_of(post(server, "/v1/run", json.dumps(PLAIN | change).encode()))["message"]


@pytest.mark.attack("S3-24")
def test_a_path_that_no_file_has_is_not_compared_with_routes(server: Server) -> None:
    """60 kB of one took 60 ms, without a token."""
    assert server.client.get(f"/v1/sandboxes/{'x' * 60_000}").status_code == 414
    assert server.client.get(f"/v1/sandboxes/x/files/{'%C3%A9' * 2000}").status_code == 404


def test_large_bodies_are_not_read(server: Server) -> None:
    sent = 0

    def parts() -> object:
        nonlocal sent
        for _ in range(200):
            sent += 1
            yield b" " * (1 << 20)

    try:
        answer = server.client.post("/v1/run", content=parts(), headers=JSON)  # type: ignore[arg-type]
        assert answer.status_code == 413
    except httpx.TransportError:  # it hung up while we were still sending
        pass
    assert sent < 200
    head = f"POST /v1/run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {50 << 20}\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(head.encode())  # and no body at all
        assert connection.recv(1024).startswith(b"HTTP/1.1 413 ")


def test_a_head_without_end_error_of(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises(OSError):
            for _ in range(1 << 16):  # 64 MB: more than the buffers of a connection hold while the server stands still
                connection.sendall(b"X-A: " + b"a" * 1000 + b"\r\n")
                time.sleep(0.0005)
    assert server.client.get("/healthz").status_code == 200


def test_another_kind_of_body_error_of(server: Server) -> None:
    answer = server.client.post("/v1/run", content=json.dumps(PLAIN), headers={"content-type": "text/plain"})
    assert answer.status_code == 415


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = "language code timeout stdin memory_limit_mb env limits args files fetch_files x".split()


@settings(max_examples=40)
@given(change=st.dictionaries(st.sampled_from(FIELDS), JUNK, min_size=1, max_size=4), path=st.sampled_from(DOORS))
def test_no_junk_is_our_failure(server: Server, change: dict[str, object], path: str) -> None:
    sent = json.dumps(PLAIN | ({"cases": [{}]} if path == "/v1/judge" else {}) | change).encode()
    answer = post(server, path, sent)
    assert answer.status_code in (200, 400, 422), answer.text
    if answer.status_code != 200:
        error_of(answer)


@pytest.mark.attack("LK-11")
def test_an_answer_says_nothing_about_where_things_lie() -> None:
    from warmcell.core.errors import ExecutionFailed, PathTraversal, PolicyViolation
    from warmcell.interfaces.serve.responses import error_to_dict

    for error in (
        PolicyViolation("'/work' would cover '/opt/secret/bin/node'", hint="move /opt/secret"),
        ExecutionFailed("cannot open /opt/secret/file"),
    ):
        assert "secret" not in json.dumps(error_to_dict(error))
    assert "../mine" in error_to_dict(PathTraversal("../mine"))["message"]  # what the client said itself


def test_a_body_of_two_lengths_error_of_and_nothing_after_it_is_heard(server: Server) -> None:
    head = "POST /v1/run HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    hidden = "0\r\n\r\nGET /v1/sandboxes HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with connect(server) as connection:
        connection.sendall((head + hidden).encode())
        said = b"".join(iter(lambda: connection.recv(4096), b""))
    assert said.count(b"HTTP/1.1 ") == 1 and said.startswith(b"HTTP/1.1 400 ")
