"""A server whose package is replaced: it goes on with the old one, and no request loads a module of ours."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import FEATURES, has_user_namespaces, require, until
from tests.serve.conftest import ROOT, Server, arguments_of, worker_pids
from tests.serve.requests import FUSION, PISTON, PLAIN, Box, asset_of, cell, create_sandbox

Start = Callable[..., Any]
#: As `warmcell serve`, but after its start the package's modules cannot be found any more, except those for /mcp.
PROGRAM = """
import sys
from importlib.abc import MetaPathFinder

class Replaced(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("warmcell.") and not name.startswith("warmcell.interfaces.mcp"):
            print("late import of", name, file=sys.stderr, flush=True)
            raise ModuleNotFoundError(name, name=name)

from warmcell.interfaces.serve.server import serve
from warmcell.interfaces.serve.settings import Settings

def start(url):
    sys.meta_path.insert(0, Replaced())
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


def call_mcp_tool(client: httpx.Client) -> str:
    """What the server says about itself."""
    opened = client.post("/mcp", json=HELLO, headers=HEADERS)
    headers = HEADERS | {"mcp-session-id": opened.headers["mcp-session-id"]}
    client.post("/mcp", json=READY, headers=headers)
    assert "mcp works" in client.post("/mcp", json=TOOL, headers=headers).text
    return opened.text


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
        call_mcp_tool(client)
    for path in client.get("/openapi.json").json()["paths"]:
        if not path.endswith("/watch"):  # which does not end
            wanted = path.replace("{id}", at.rpartition("/")[2]).replace("{path}", "a").replace("{session}", session)
            assert client.get(wanted).status_code < 500, path
    assert client.delete(at).status_code == 204


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Where our package is installed for a single server."""
    directory, metadata = tmp_path / "packages", tmp_path / "packages" / "warmcell-9.8.7.dist-info"
    shutil.copytree(ROOT / "src" / "warmcell", directory / "warmcell", ignore=shutil.ignore_patterns("*.wasm"))
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: warmcell\nVersion: 9.8.7\n")
    return directory


def replace_package(packages: Path) -> None:
    """As an installer does, by files that nothing can use."""
    shutil.rmtree(packages / "warmcell-9.8.7.dist-info")
    for path in list((packages / "warmcell").rglob("*")):
        if path.is_file():
            path.unlink()
            path.write_text("raise ImportError('the package was replaced')\n")


LANGUAGES = {
    "python": ("print(6 * 7)", "linux"),
    "command": ("echo 42", "linux"),
    "sql": ("select 6 * 7;", "linux"),
    "javascript": ("console.log(6 * 7)", "node"),
    "c": ('#include <stdio.h>\nint main(void) { puts("42"); }', "gcc"),
}


def run_all_languages(client: httpx.Client) -> None:
    for language, (code, feature) in LANGUAGES.items():
        if FEATURES[feature]():
            answer = client.post("/v1/run", json={"language": language, "code": code, "timeout": 60})
            assert answer.json().get("stdout") == "42\n", (language, answer.text)


def is_answering(server: Server) -> bool:
    return server.client.post("/v1/run", json=PLAIN).status_code == 200


def use_session(client: httpx.Client) -> None:
    """In a live sandbox."""
    at = create_sandbox(client)
    opened = client.post(f"{at}/sessions", json={"language": "python"})
    assert opened.status_code == 201, opened.text
    answer = client.post(f"{at}/sessions/{opened.json()['id']}/run", json={"code": "6 * 7"})
    assert answer.json().get("value") == "42", answer.text


def test_a_replaced_package_changes_nothing_for_a_running_server(
    start_server: Start, packages: Path, short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(short_directory))
    with start_server("--workers", "2", packages=packages) as server:
        until(lambda: is_answering(server), 120)
        replace_package(packages)
        run_all_languages(server.client)
        use_session(server.client)
        box = Box(server.client)
        assert box.run("echo 1") == (0, "1\n", "") and box.kill() == 204
        if find_spec("mcp") is not None:
            assert "9.8.7" in call_mcp_tool(server.client)
        assert server.client.get(asset_of(server)).status_code == 200
        workers = worker_pids(server)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(set(worker_pids(server)) - set(workers)) == 2, 120)
        until(lambda: is_answering(server), 120)
        use_session(server.client)
        workers = worker_pids(server)
        status, said = server.stop()
    assert status == 0, said
    assert not any(map(arguments_of, workers))
    assert list(short_directory.iterdir()) == []
