"""`warmcell serve --ray`: one address for all nodes, and what the loss of a node costs."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import e2b
import httpx
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from tests.helpers import PATIENCE, until
from tests.mcp_door.requests import call
from tests.serve.conftest import Server
from websockets.sync.client import connect

from warmcell import SandboxPolicy

#: For a node of Ray to start, or to be missed.
STARTING_SECONDS = 4 * PATIENCE


@pytest.fixture(scope="module")
def policy_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("policy") / "policy.json"
    write_policy(file, "one")
    return file


def write_policy(file: Path, stage: str) -> None:
    file.write_text(SandboxPolicy(allow_process_spawn=True, env={"STAGE": stage}).to_json())


@pytest.fixture(scope="module")
def server(cluster: Any, policy_file: Path) -> Iterator[Server]:
    options = "--spares", "0", "--sandboxes", "8", "--log-level", "info", "--policy", str(policy_file)
    made = Server("--ray", cluster.address, *options)
    try:
        until(lambda: len(nodes_of(made)) == len(cluster.worker_nodes))
        yield made
    finally:
        made.stop()


def nodes_of(server: Server) -> list[str]:
    return [node["id"] for node in server.client.get("/v1/activity").json()["nodes"] if not node["reason"]]


def make_sandbox(server: Server) -> Any:
    key = "e2b_" + "0" * 40
    return e2b.Sandbox.create(timeout=3000, api_key=key, api_url=server.url, sandbox_url=server.url)


def run(server: Server, code: str) -> httpx.Response:
    return server.client.post("/run_code", json={"code": code, "language": "python", "run_timeout": 30})


def test_runs_of_each_protocol(server: Server) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: run(server, f"print({n})").json(), range(24)))
    assert [answer["run_result"]["stdout"] for answer in answers] == [f"{n}\n" for n in range(24)]
    body = {"language": "python", "code": "print(6 * 7)", "timeout": 30}
    assert server.client.post("/v1/run", json=body).json()["stdout"] == "42\n"
    notebook = {"cells": ["x = 1", "x + 1"], "total_timeout": 40}
    assert server.client.post("/run_jupyter", json=notebook).json()["status"] == "Success"
    assert "warmcell_runs_total{" in server.client.get("/metrics").text


def test_what_a_cluster_does_not_have_is_refused_with_the_reason(server: Server) -> None:
    for path in ("/templates", "/volumes", "/snapshots", "/v1/usage"):
        refused = server.client.get(path)
        assert refused.status_code == 501 and "cluster" in refused.text, path


async def test_a_session_over_mcp(server: Server) -> None:
    async with Client(streamable_http_client(f"{server.url}/mcp")) as client:
        await call(client, "run_code", code="x = 41")
        assert (await call(client, "run_code", code="x + 1"))["value"] == "42"


def test_a_run_is_fed_over_a_web_socket(server: Server) -> None:
    address = server.url.replace("http", "ws") + "/v1/run/ws"
    with connect(address, open_timeout=60, proxy=None) as socket:
        socket.send(json.dumps({"language": "python", "code": "print('you said', input())", "timeout": 30}))
        socket.send(b"hello\n")
        messages = list(socket)
    assert b"".join(message[1:] for message in messages if isinstance(message, bytes)) == b"you said hello\n"
    assert json.loads(messages[-1])["status"] == "success"


def test_a_signed_link_finds_the_node_of_its_sandbox(server: Server) -> None:
    boxes = [make_sandbox(server) for _ in range(4)]
    assert len({box.sandbox_id[-8:] for box in boxes}) == 2
    for box in boxes:
        box.files.write("kept.txt", box.sandbox_id)
        link = box.download_url("kept.txt")
        assert "signature=" in link
        assert httpx.get(link, timeout=60).text == box.sandbox_id
        box.kill()


def test_a_reload_reaches_the_nodes(server: Server, policy_file: Path) -> None:
    def stages() -> set[str]:
        with ThreadPoolExecutor(4) as threads:
            answers = threads.map(lambda _: run(server, "import os; print(os.environ['STAGE'])").json(), range(4))
            return {answer["run_result"]["stdout"].strip() for answer in answers}

    assert stages() == {"one"}
    write_policy(policy_file, "two")
    server.process.send_signal(signal.SIGHUP)
    until(lambda: stages() == {"two"})


def test_sandboxes_on_three_nodes_of_which_one_is_lost(cluster: Any, server: Server) -> None:
    """E2B's SDK at one address. The loss costs the sandboxes of the node and nothing else."""
    cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    until(lambda: len(nodes_of(server)) == 3, STARTING_SECONDS)
    boxes = [make_sandbox(server) for _ in range(6)]
    for box in boxes:
        box.files.write("kept.txt", box.sandbox_id)
        assert box.commands.run("cat kept.txt").stdout == box.sandbox_id
    running = {box.sandbox_id: box.commands.run("cat", background=True, stdin=True) for box in boxes}
    assert {box.sandbox_id[-8:] for box in boxes} == {one.node_id[:8] for one in cluster.worker_nodes}
    assert list_sandboxes(server) == {box.sandbox_id for box in boxes}
    gone = next(one for one in cluster.worker_nodes if one.node_id[:8] == boxes[0].sandbox_id[-8:])
    cluster.remove_node(gone, False)
    until(lambda: gone.node_id not in nodes_of(server), STARTING_SECONDS)
    lost = [box for box in boxes if box.sandbox_id.endswith(gone.node_id[:8])]
    kept = [box for box in boxes if box not in lost]
    for box in lost:
        with pytest.raises(e2b.TimeoutException, match="was lost"):
            box.commands.run("true")
        answer = server.client.get(f"/v1/sandboxes/{box.sandbox_id}/files")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["fault"]) == (410, "sandbox.node_lost", "host")
        assert not box.kill()
    for box in kept:
        assert box.files.read("kept.txt") == box.sandbox_id
        box.files.write("kept.txt", "changed")
        assert box.commands.run("cat kept.txt").stdout == "changed"
        process = running[box.sandbox_id]
        box.commands.send_stdin(process.pid, "still here")
        box.commands.close_stdin(process.pid)
        assert process.wait().stdout == "still here"
    assert run(server, "print('after')").json()["run_result"]["stdout"] == "after\n"
    made = [make_sandbox(server) for _ in range(2)]
    assert [box.commands.run("echo new").stdout for box in made] == ["new\n"] * 2
    assert list_sandboxes(server) == {box.sandbox_id for box in (*kept, *made)}
    rows = {row["id"]: row["node"] for row in server.client.get("/v1/activity").json()["sandboxes"]}
    assert rows == {box.sandbox_id: box.sandbox_id[-8:] for box in (*kept, *made)}
    assert len(set(rows.values())) == 2
    for box in (*kept, *made):
        box.kill()


def list_sandboxes(server: Server) -> set[str]:
    return {row["sandboxID"] for row in server.client.get("/v2/sandboxes").json()}


def test_the_quota_is_that_of_all_nodes(server: Server) -> None:
    made = [server.client.post("/v1/sandboxes", json={}) for _ in range(9)]
    assert [answer.status_code for answer in made] == [201] * 8 + [429]
    for answer in made[:8]:
        assert server.client.delete(f"/v1/sandboxes/{answer.json()['id']}").status_code == 204
    assert server.client.get("/v1/sandboxes").json() == []
