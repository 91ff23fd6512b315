"""A server that may open few descriptors: 503 with Retry-After before they run out, and no traceback."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from tests.helpers import PATIENCE, eventually
from tests.hosts.conditions import with_limit
from tests.serve.conftest import Server
from tests.serve.requests import PLAIN

from warmcell.interfaces.serve.listener import AcceptFailures

Start = Callable[..., AbstractContextManager[Server]]
#: The hard limit: the server raises the soft one. A quarter of it is for connections, of which one address has 48.
LIMIT, CONNECTIONS = 256, 100
ATTEMPTS = 24


@pytest.mark.needs("linux", "user namespaces")
def test_a_server_with_few_descriptors_refuses_new_work_before_they_run_out(start_server: Start) -> None:
    with start_server(prefix=with_limit(f"-n {LIMIT}")) as server:
        address = httpx.URL(server.url)
        idle = [socket.create_connection((address.host, address.port)) for _ in range(CONNECTIONS)]
        # A connection for each request: one that is kept may be closed in favour of a new one.
        limits = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(base_url=server.url, timeout=PATIENCE, trust_env=False, limits=limits) as client:
            with ThreadPoolExecutor(4) as threads:
                answers = [answer for found in threads.map(_use_sandbox, [client] * ATTEMPTS) for answer in found]
            statuses = {answer.status_code for answer in answers}
            assert {201, 503} <= statuses <= {200, 201, 503}, [answer.text for answer in answers]
            for answer in answers:
                if answer.status_code == 503:
                    assert "retry-after" in answer.headers and answer.json()["error"]["retryable"], answer.text
            for sandbox in client.get("/v1/sandboxes").json():
                assert client.delete(f"/v1/sandboxes/{sandbox['id']}").status_code == 204
            assert eventually(lambda: client.post("/v1/run", json=PLAIN).status_code == 200, PATIENCE)
        for connection in idle:
            connection.close()
        status, log = server.stop()
    assert status == 0 and "Traceback" not in log and "new work is refused" in log, log


def _use_sandbox(client: httpx.Client) -> list[httpx.Response]:
    """The responses up to the first refusal."""
    answers = [client.post("/v1/sandboxes", json={})]
    if answers[0].status_code == 201:
        at = f"/v1/sandboxes/{answers[0].json()['id']}"
        for path, body in (("sessions", {"language": "python"}), ("sh", {"script": "echo 1"})):
            answers.append(client.post(f"{at}/{path}", json=body))
    return answers


def test_connections_that_cannot_be_accepted_are_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    handle, others = AcceptFailures(), list[dict[str, Any]]()
    loop.default_exception_handler = others.append  # type: ignore[method-assign]
    try:
        failure = {"message": "socket.accept() out of system resource", "exception": OSError(errno.EMFILE, "many")}
        for _ in range(32):
            handle(loop, failure)
        handle(loop, {"message": "something else"})
    finally:
        loop.close()
    assert others == [{"message": "something else"}]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("could not accept connections: too many open descriptors") and "ulimit -n" in line
