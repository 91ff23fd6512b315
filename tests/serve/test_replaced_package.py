"""A server whose package was replaced: no request loads a module of ours after the server has started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import has_user_namespaces, require
from tests.serve.conftest import ROOT
from tests.serve.requests import FUSION, PISTON, PLAIN, Box, cell, create_sandbox

#: As `warmcell serve`, but after its start the modules of the package cannot be found any more. `/mcp` is not tried.
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
    sys.meta_path.insert(0, Replaced())
    print(url, flush=True)

serve(Settings(port=0), start)
"""


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
    for path in client.get("/openapi.json").json()["paths"]:
        if not path.endswith("/watch"):  # which does not end
            wanted = path.replace("{id}", at.rpartition("/")[2]).replace("{path}", "a").replace("{session}", session)
            assert client.get(wanted).status_code < 500, path
    assert client.delete(at).status_code == 204
