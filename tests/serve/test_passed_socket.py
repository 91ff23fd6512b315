"""A socket that a service manager keeps: clients wait while no server runs."""

from __future__ import annotations

import socket
from http.client import HTTPConnection

import pytest
from tests.helpers import has_user_namespaces, require
from tests.serve.passed_socket import start


def ask(port: int) -> HTTPConnection:
    client = HTTPConnection("127.0.0.1", port, timeout=60)
    client.request("GET", "/healthz")
    return client


def test_clients_wait_for_the_server() -> None:
    require(has_user_namespaces(), "this host has no user namespaces")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        early = ask(port)
        with start(listening) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == f"http://127.0.0.1:{port}\n"
            assert early.getresponse().read() == b'{"status":"ok"}'
            early.close()
            process.terminate()
            assert process.wait(60) == 0
        late = ask(port)  # accepted by the kernel for the next server
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.recv(4096).startswith(b"GET /healthz")
        late.close()


@pytest.mark.parametrize(
    ("host", "count", "problem"), [("0.0.0.0", 1, "no token is required"), ("127.0.0.1", 2, "passed 2 sockets")]
)
def test_a_socket_that_is_refused(host: str, count: int, problem: str) -> None:
    with socket.create_server((host, 0)) as listening, start(listening, count=count) as process:
        error = process.communicate(timeout=60)[1]
        assert process.returncode == 2 and problem in error, error
