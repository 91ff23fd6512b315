"""An operator ends runs and sandboxes of all tenants, by the ids that `/v1/activity` and `warmcell top` show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import until
from tests.serve.conftest import ROOT, Server, make_token
from tests.serve.requests import stream_events
from websockets.sync.client import connect

Start = Callable[..., AbstractContextManager[Server]]
LONG = {"language": "python", "code": "import time; print('begun', flush=True); time.sleep(300)", "timeout": 300}


class Operated:
    """A server with a user and an operator, who may not run programs."""

    def __init__(self, server: Server, user: str, operator: str) -> None:
        self.server, self.user_token, self.operator_token = server, user, operator
        self.user, self.operator = {"x-api-key": user}, {"x-api-key": operator}

    def activity(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.client.get("/v1/activity", headers=self.operator).json()
        return found

    def running(self) -> str:
        until(lambda: any(run["state"] == "running" for run in self.activity()["runs"]))
        identity: str = self.activity()["runs"][0]["id"]
        return identity

    def end(self, kind: str, identity: str, **headers: str) -> int:
        at = f"/v1/activity/{kind}/{identity}"
        return self.server.client.delete(at, headers=headers or self.operator).status_code


@pytest.fixture(scope="module", params=["1", "2"], ids=["one process", "two workers"])
def operated(start_server: Start, tmp_path_factory: pytest.TempPathFactory, request: Any) -> Iterator[Operated]:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens.json"
    user = make_token(tokens, "user")
    operator = make_token(tokens, "operator", "--scope", "operate", "--scope", "metrics")
    with start_server("--tokens", str(tokens), "--workers", request.param) as server:
        yield Operated(server, user, operator)


def top(operated: Operated, identity: str, token: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "warmcell", "top", "--server", operated.server.url, "--end", identity]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "WARMCELL_TOKEN": token}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_a_run_is_ended_and_its_client_is_told(operated: Operated) -> None:
    answers: list[Any] = []

    def ask() -> None:
        answers.append(operated.server.client.post("/v1/run", json=LONG, headers=operated.user))

    asking = threading.Thread(target=ask)
    asking.start()
    identity = operated.running()
    assert operated.end("runs", identity, **operated.user) == 403
    assert operated.end("runs", identity) == 204
    asking.join(60)
    error = answers[0].json()["error"]
    assert answers[0].status_code == 409 and "operator" in error["message"] and error["fault"] == "host"
    until(lambda: not operated.activity()["runs"])
    assert operated.end("runs", identity) == 404


def test_a_stream_ends_with_an_error_event(operated: Operated) -> None:
    client = operated.server.client
    with stream_events(client, "POST", "/v1/run", json=LONG, headers=operated.user) as events:
        assert next(events)[0] == "stdout"
        assert operated.end("runs", operated.running()) == 204
        name, data, _ = next(events)
        assert name == "error" and "operator" in data["error"]["message"]
        assert list(events) == []
    until(lambda: not operated.activity()["runs"])


def test_a_sandbox_is_ended(operated: Operated) -> None:
    made = operated.server.client.post("/v1/sandboxes", json={}, headers=operated.user).json()["id"]
    assert [entry["id"] for entry in operated.activity()["sandboxes"]] == [made]
    assert operated.end("sandboxes", made, **operated.user) == 403
    assert operated.end("sandboxes", made) == 204
    assert operated.server.client.get(f"/v1/sandboxes/{made}", headers=operated.user).status_code == 404
    assert operated.activity()["sandboxes"] == []


def test_top_ends_what_it_shows(operated: Operated) -> None:
    made = operated.server.client.post("/v1/sandboxes", json={}, headers=operated.user).json()["id"]
    refused = top(operated, made, operated.user_token)
    assert refused.returncode != 0 and "'operate'" in refused.stderr
    ended = top(operated, made, operated.operator_token)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    again = top(operated, made, operated.operator_token)
    assert again.returncode != 0 and "lists the ids" in again.stderr


def test_the_audit_names_the_operator(start_server: Start, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    with start_server("--audit", str(audit)) as server:
        made = server.client.post("/v1/sandboxes", json={}).json()["id"]
        assert server.client.delete(f"/v1/activity/sandboxes/{made}").status_code == 204
        until(lambda: '"method": "DELETE", "route": "/v1/activity/sandboxes/{sandbox}"' in audit.read_text())


def test_a_program_on_a_web_socket_is_shown_and_ended(operated: Operated) -> None:
    url = operated.server.url.replace("http:", "ws:") + "/v1/run/ws"
    with connect(url, additional_headers=operated.user) as socket:
        socket.send(json.dumps(LONG))
        assert bytes(socket.recv()).startswith(b"\1begun")
        (run,) = operated.activity()["runs"]
        assert (run["state"], run["language"]) == ("running", "python") and run["tenant"]
        assert operated.end("runs", run["id"]) == 204
        messages = (json.loads(message) for message in socket if isinstance(message, str))
        error = next(message["error"] for message in messages if message["type"] == "error")
    assert "operator" in error["message"] and error["fault"] == "host"
    until(lambda: not operated.activity()["runs"])
    assert operated.end("runs", run["id"]) == 404
