"""Clients that disconnect at every stage of a request: the next request is right, nothing is left, SIGTERM ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import httpx
import pytest
from tests.helpers import until
from tests.serve.conftest import ROOT, Server, disconnect_after, make_token, worker_pids

from warmcell.interfaces.serve.v1.activity import MAX_STREAMS

Start = Callable[..., AbstractContextManager[Server]]


@contextmanager
def response_to(server: Server, path: str, body: object) -> Iterator[HTTPResponse]:
    """A response whose client closes the connection at the end of the block."""
    address = httpx.URL(server.url)
    connection = HTTPConnection(address.host, address.port, timeout=60)
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    connection.request("POST", path, json.dumps(body), headers)
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def read_until(response: HTTPResponse, text: bytes) -> None:
    seen = b""
    while text not in seen:
        line = response.readline()
        assert line, seen
        seen += line


@pytest.mark.attack("S3-05")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_client_that_leaves_while_a_cell_waits_for_input(start_server: Start, workers: str) -> None:
    with start_server("--workers", workers) as server:
        client = server.client
        at = f"/v1/sandboxes/{client.post('/v1/sandboxes', json={}).json()['id']}"
        session = f"{at}/sessions/{client.post(f'{at}/sessions', json={}).json()['id']}"
        for _ in range(3):
            with response_to(server, f"{session}/run", {"code": "input('? ')", "answers_input": True}) as response:
                read_until(response, b"event: input")
            after = client.post(f"{session}/run", json={"code": "6 * 7", "timeout": 20}, timeout=30)
            while after.status_code == 409:  # the session is busy until the interrupted cell has ended
                time.sleep(0.1)
                after = client.post(f"{session}/run", json={"code": "6 * 7", "timeout": 20}, timeout=30)
            assert after.json()["value"] == "42", after.text
        with response_to(server, f"{session}/run", {"code": "input('? ')", "answers_input": True}) as response:
            read_until(response, b"event: input")
        assert client.delete(at, timeout=20).status_code == 204
        status, log = server.stop(signal.SIGTERM, 30)
        assert (status, "Traceback" in log) == (0, False), log


@pytest.mark.attack("S3-16")
def test_what_waits_in_the_queue_ends_with_its_client(start_server: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    secret = make_token(tokens, "one", "--runs", "1", *(f"--scope={scope}" for scope in ("run", "sandbox", "metrics")))
    headers = {"authorization": f"Bearer {secret}"}
    with start_server("--tokens", str(tokens)) as server:
        server.client.headers.update(headers)

        def is_one(state: str) -> bool:
            return f"warmcell_runs_{state} 1.0" in server.client.get("/metrics").text

        at = f"/v1/sandboxes/{server.client.post('/v1/sandboxes', json={}).json()['id']}"
        session = f"{at}/sessions/{server.client.post(f'{at}/sessions', json={}).json()['id']}"
        long = {"language": "python", "code": "import time; time.sleep(200)", "timeout": 250}
        with disconnect_after(server, "/v1/run", long, headers):
            until(lambda: is_one("running"))
            for path, body in (
                (f"{at}/sessions", {}),
                (f"{at}/processes", {"command": "true"}),
                (f"{session}/restart", {}),
            ):
                with disconnect_after(server, path, body, headers):
                    until(lambda: is_one("waiting"))
                until(lambda: not is_one("waiting"))
            lines = server.client.get("/metrics").text.splitlines()  # before the client of the run disconnects, too
        ended = [line for line in lines if line.startswith("warmcell_http_requests_total") and 'status="499"' in line]
        assert len(ended) == 3, "they ended when their queue timeout was over"
        after = server.client.post(f"{session}/run", json={"code": "6 * 7"})
        assert after.json()["value"] == "42", after.text


STAGES = {
    "before the request": b"",
    "in the head": b"POST /v1/run HTTP/1.1\r\nHost: loc",
    "in the body": b'POST /v1/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{"code":',
    "while a run waits for output": None,
}
ROUTES = {
    "/v1/run": {"language": "python", "code": "import time; print(1, flush=True); time.sleep(MARK)", "timeout": 200},
    "/v1/judge": {"language": "python", "code": "import time; time.sleep(MARK)", "timeout": 200, "cases": [{}]},
    "/run_code": {"language": "python", "code": "import time; time.sleep(MARK)", "run_timeout": 200},
    "/run_jupyter": {"cells": ["import time; time.sleep(MARK)"], "total_timeout": 200},
    "/api/v2/execute": {
        "language": "python",
        "version": "*",
        "files": [{"content": "import time; time.sleep(MARK)"}],
        "run_timeout": 200_000,
    },
    "{at}/run": {"code": "import time; time.sleep(MARK)", "timeout": 200},
    "{at}/sh": {"script": "sleep MARK", "timeout": 200},
    "{at}/exec": {"command": "sleep", "args": ["MARK"], "timeout": 200},
    "{session}/run": {"code": "import time; time.sleep(MARK)", "timeout": 200},
}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_clients_that_leave_every_route_at_every_stage(start_server: Start, workers: str) -> None:
    with start_server("--workers", workers) as server:
        client = server.client
        at = f"/v1/sandboxes/{client.post('/v1/sandboxes', json={}).json()['id']}"
        session = f"{at}/sessions/{client.post(f'{at}/sessions', json={}).json()['id']}"
        address = httpx.URL(server.url)
        for sent in filter(None, STAGES.values()):
            with socket.create_connection((address.host, address.port)) as connection:
                connection.sendall(sent)
        for route, body in ROUTES.items():
            path = route.format(at=at, session=session)
            for accept in ("application/json", "text/event-stream"):
                connection = HTTPConnection(address.host, address.port, timeout=60)
                text = json.dumps(body).replace("MARK", "177")
                connection.request("POST", path, text, {"content-type": "application/json", "accept": accept})
                time.sleep(0.3)
                connection.close()
        until(lambda: client.post(f"{session}/run", json={"code": "6 * 7"}).json().get("value") == "42", 60)
        assert client.post(f"{at}/run", json={"code": "print(7)"}).json()["stdout"] == "7\n"
        plain = {"language": "python", "code": "print(8)", "timeout": 20}
        assert client.post("/v1/run", json=plain).json()["stdout"] == "8\n"
        until(lambda: not client.get("/v1/activity").json()["runs"], 30)
        status, log = server.stop(signal.SIGTERM, 30)
        assert (status, "Traceback" in log) == (0, False), log
        assert "SIGTERM: shutting down" in log


@pytest.mark.attack("S3-22")
def test_a_revoked_token_ends_its_streams_without_a_signal(start_server: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    token = make_token(tokens, "one", "--scope", "run", "--scope", "metrics")
    make_token(tokens, "two")
    with start_server("--tokens", str(tokens)) as server:
        headers = {"authorization": f"Bearer {token}", "accept": "text/event-stream"}
        endless = {
            "language": "python",
            "code": "import time\nwhile 1: print(1, flush=True); time.sleep(.1)",
            "timeout": 99,
        }
        with (
            server.client.stream("GET", "/v1/history", headers=headers) as history,
            server.client.stream("POST", "/v1/run", headers=headers, json=endless) as run,
        ):
            assert history.status_code == run.status_code == 200
            command = [sys.executable, "-m", "warmcell", "token", "revoke", "one", "--tokens", str(tokens)]
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
            for stream in (history, run):
                with pytest.raises(httpx.RemoteProtocolError):
                    for _ in stream.iter_bytes():
                        pass
        late = make_token(tokens, "three")
        until(lambda: server.client.get("/v1/capabilities", headers={"x-api-key": late}).status_code == 200, 20)


@pytest.mark.attack("S3-23")
def test_a_token_sees_the_activity_of_others_only_if_it_may(start_server: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    usual, operator = make_token(tokens, "usual"), make_token(tokens, "operator", "--scope", "metrics")
    with start_server("--tokens", str(tokens)) as server:
        statuses = [
            server.client.get(path, headers={"x-api-key": token}).status_code
            for token in (usual, operator)
            for path in ("/v1/activity", "/metrics", "/v1/history")
        ]
        assert statuses == [403, 403, 403, 200, 200, 200]


@pytest.mark.attack("S3-20")
def test_a_client_cannot_choose_its_worker(start_server: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    token = make_token(tokens, "one", "--sandboxes", "2")
    with start_server("--tokens", str(tokens), "--workers", "2") as server:
        made = [
            server.client.post("/v1/sandboxes", json={}, headers={"x-api-key": token, "e2b-sandbox-id": worker})
            for worker in ("00", "01", "00", "01")
        ]
        assert [answer.status_code for answer in made] == [201, 201, 429, 429]


@pytest.mark.attack("S3-25")
@pytest.mark.parametrize("path", ["/v1/history", "/v1/sandboxes/x/watch", "/v1/sandboxes/x/processes/1/output"])
def test_head_of_a_stream_ends(server: Server, path: str) -> None:
    answer = server.client.head(path, headers={"accept": "text/event-stream"}, timeout=20)
    assert answer.status_code in (200, 405)


@pytest.mark.attack("S3-25")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_streams_of_history_are_bounded(start_server: Start, tmp_path: Path, workers: str) -> None:
    tokens = tmp_path / "tokens.json"
    made = [make_token(tokens, name, "--scope", "metrics") for name in ("one", "two")]
    one, two = ({"x-api-key": token, "accept": "text/event-stream"} for token in made)
    with start_server("--tokens", str(tokens), "--workers", workers) as server:
        with ExitStack() as streams:
            for number in range(MAX_STREAMS):
                opened = streams.enter_context(server.client.stream("GET", "/v1/history", headers=one))
                assert opened.status_code == 200, number
            refused = server.client.get("/v1/history", headers=one)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
            assert "64 open streams" in refused.json()["error"]["message"]
            with server.client.stream("GET", "/v1/history", headers=two) as other:
                assert other.status_code == 200
            assert server.client.get("/v1/history", headers={"x-api-key": made[0]}).status_code == 200

        def is_opened() -> bool:
            with server.client.stream("GET", "/v1/history", headers=one) as again:
                return again.status_code == 200

        until(is_opened)


@pytest.mark.attack("S3-25")
def test_numbers_past_the_range_of_floats_are_errors_of_the_caller(start_server: Start) -> None:
    bodies = {
        "/v1/run": '{"language": "python", "code": "1", "timeout": 1e999}',
        "/run_code": '{"language": "python", "code": "1", "run_timeout": 1e999}',
        "/run_jupyter": '{"cells": ["1"], "total_timeout": 1e999, "cell_timeout": 1e999}',
        "/api/v2/execute": '{"language": "python", "version": "*", "files": [{"content": "1"}], "run_timeout": 1e999}',
        "/v1/sandboxes": '{"lifetime": 1e999}',
        "/v2/sandboxes": '{"templateID": "base", "timeout": 1e999}',
    }
    with start_server() as server:
        for path, body in bodies.items():
            answer = server.client.post(path, content=body, headers={"content-type": "application/json"})
            assert 400 <= answer.status_code < 500, (path, answer.text)
        compile_timeout = '{"language": "python", "code": "print(1)", "compile_timeout": 1e999}'
        answer = server.client.post("/run_code", content=compile_timeout, headers={"content-type": "application/json"})
        assert answer.status_code < 500, answer.text
        assert "Traceback" not in server.stop()[1]


@pytest.mark.attack("S3-17")
def test_the_answers_of_all_cases_have_a_bound(server: Server) -> None:
    code = "import sys; sys.stdout.write(chr(1) * (8 << 20))"
    body = {"language": "python", "code": code, "timeout": 60, "limits": {"output_bytes": 16 << 20}}
    answer = server.client.post("/v1/judge", json=body | {"cases": [{}] * 8})
    assert answer.status_code == 422 and "exceed 32 MiB" in answer.json()["error"]["message"]
    linked = "import os; open('big', 'wb').write(bytes(30 << 20)); [os.link('big', f'l{n}') for n in range(9)]"
    notebook = {"cells": [linked], "fetch_files": [f"l{number}" for number in range(9)], "total_timeout": 60}
    fetched = server.client.post("/run_jupyter", json=notebook)
    assert fetched.status_code == 422 or len(fetched.content) < 100 << 20, fetched.status_code


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_a_killed_server_leaves_is_removed_by_the_next_start(
    start_server: Start, short_directory: Path, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(short_directory))
    with start_server("--workers", workers) as server:
        made = server.client.post("/v1/sandboxes", json={}).json()["id"]
        server.client.put(f"/v1/sandboxes/{made}/files/a", content=b"a")
        # Workers are stopped first: they notice the end of the front and would remove what is theirs.
        killed = [*worker_pids(server), server.process.pid]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in killed:
                os.kill(pid, number)
        server.process.wait(30)
    left = {path.name for path in short_directory.iterdir()}
    assert left
    with start_server("--workers", workers) as server:
        made = server.client.post("/v1/sandboxes", json={}).json()["id"]
        server.client.put(f"/v1/sandboxes/{made}/files/a", content=b"a")
        until(lambda: not left & {path.name for path in short_directory.iterdir()})


@pytest.mark.attack("S3-19")
def test_streams_that_are_not_read_do_not_keep_others_from_running(start_server: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    greedy, other = make_token(tokens, "greedy"), make_token(tokens, "other")
    flood = {"language": "python", "code": "while 1: print('x' * 65536)", "timeout": 100}
    plain = {"language": "python", "code": "print(7)", "timeout": 20}
    with start_server("--tokens", str(tokens)) as server:
        address, connections = httpx.URL(server.url), []
        for _ in range(40):
            connection = HTTPConnection(address.host, address.port, timeout=60)
            headers = {"content-type": "application/json", "accept": "text/event-stream", "x-api-key": greedy}
            connection.request("POST", "/v1/run", json.dumps(flood), headers)
            connections.append(connection)
        answer = server.client.post("/v1/run", json=plain, headers={"x-api-key": other}, timeout=60)
        assert answer.json()["stdout"] == "7\n", answer.text
        for connection in connections:
            connection.close()
