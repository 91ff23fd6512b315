"""A server whose package was replaced: no request loads a module of ours after the server has started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import has_user_namespaces, require
from tests.serve.conftest import ROOT
from tests.serve.requests import FUSION, PISTON, PLAIN, Box, cell, create_sandbox

#: As `warmcell serve`, but after its start the files of the package's modules cannot be found any more.
PROGRAM = """
import sys
from importlib.abc import MetaPathFinder

class Replaced(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "warmcell":
            print("late import of", name, file=sys.stderr, flush=True)
            raise ModuleNotFoundError(name, name=name)

from warmcell.interfaces.serve.server import serve
from warmcell.interfaces.serve.settings import Settings

def start(url):
    sys.meta_path.insert(1, Replaced())  # after the code that the server has kept
    print(url, flush=True)

serve(Settings(port=0), start)
"""

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}
TOOL = {
    "jsonrpc": "2.0",
    "id": 2,
    "method": "tools/call",
    "params": {"name": "run_code", "arguments": {"language": "python", "code": "print('mcp', 'works')"}},
}
HEADERS = {"accept": "application/json, text/event-stream"}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    require(has_user_namespaces(), "this host has no user namespaces")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
    assert process.stdout is not None
    try:
        with process.stdout, httpx.Client(base_url=process.stdout.readline().strip(), timeout=60) as made:
            yield made
    finally:
        process.terminate()
        process.wait(60)
    assert "late import" not in (said := (tmp_path / "log").read_text()), said


def test_no_request_loads_a_module(client: httpx.Client) -> None:
    def post(path: str, expected: int = 200, **body: Any) -> Any:
        answer = client.post(path, json=body)
        assert answer.status_code == expected, (path, answer.text)
        return answer.json()

    assert post("/v1/run", **PLAIN)["stdout"] == "1\n"
    assert "event: result" in client.post("/v1/run", json=PLAIN, headers={"accept": "text/event-stream"}).text
    assert post("/v1/run", **PLAIN | {"language": "command", "code": "echo 1"})["stdout"] == "1\n"
    assert post("/v1/run", **PLAIN | {"code": "while True: pass", "timeout": 0.2})["status"] == "timeout"
    assert post("/v1/judge", **PLAIN, cases=[{"stdin": "", "expected": "1"}])["accepted"] == 1
    post("/run_code", **FUSION)
    post("/api/v2/execute", **PISTON)
    at = create_sandbox(client, forkable=True)
    client.put(f"{at}/files/a", content=b"1\n")
    assert post(f"{at}/exec", command="cat", args=["a"])["stdout"] == "1\n"
    assert post(f"{at}/sh", script="cat a")["stdout"] == "1\n"
    assert post(f"{at}/run", language="python", code="print(1)")["stdout"] == "1\n"
    session = post(f"{at}/sessions", 201, language="python")["id"]
    assert post(f"{at}/sessions/{session}/run", code="1 + 1")["value"] == "2"
    post(f"{at}/sessions/{session}/fork", 201)
    snapshot = post(f"{at}/snapshots", 201)["id"]
    post(f"{at}/fork", 201, snapshot=snapshot)
    post(f"{at}/processes", 201, command="cat")
    post(f"{at}/ports", 201, port=8000)
    assert client.put(f"{at}/network", json={"allow": [], "deny": []}).status_code == 204
    box = Box(client)
    assert box.run("echo 1") == (0, "1\n", "")
    assert '"text": "2"' in cell(box, code="1 + 1", language="python").text
    assert box.call("filesystem.Filesystem/ListDir", path="/home/user").status_code == 200
    assert client.post(f"/sandboxes/{box.id}/pause").status_code == 204
    if find_spec("mcp") is not None:
        opened = client.post("/mcp", json=HELLO, headers=HEADERS)
        headers = HEADERS | {"mcp-session-id": opened.headers["mcp-session-id"]}
        client.post("/mcp", json=READY, headers=headers)
        assert "mcp works" in client.post("/mcp", json=TOOL, headers=headers).text
    for path in client.get("/openapi.json").json()["paths"]:
        if not path.endswith("/watch"):  # which does not end
            wanted = path.replace("{id}", at.rpartition("/")[2]).replace("{path}", "a").replace("{session}", session)
            assert client.get(wanted).status_code < 500, path
    assert client.delete(at).status_code == 204
