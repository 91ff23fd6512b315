"""Bytes in `/v1/usage`: what sandboxes store, and what goes through the egress proxy, of the right tenant."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import until
from tests.serve.conftest import Server, await_workers, make_token
from tests.serve.requests import Box, create_sandbox

Start = Callable[..., AbstractContextManager[Server]]
#: The proxy refuses what this asks for, and counts its bytes.
ASK_PROXY = (
    "python3 -c \"import socket; s = socket.create_connection(('127.0.0.1', 3128));"
    " s.sendall(b'GET http://other.example/ HTTP/1.1\\r\\nHost: other.example\\r\\n\\r\\n'); s.recv(9999)\""
)


def usage(server: Server, token: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = server.client.get("/v1/usage", headers={"x-api-key": token}).json()["usage"]
    return rows


def test_a_sandbox_made_ahead_counts_for_the_tenant_that_gets_it(start_server: Start, tmp_path: Path) -> None:
    tokens, policy = tmp_path / "tokens.json", tmp_path / "policy.json"
    rules = [{"domain": "example.org", "ports": [80]}]
    policy.write_text(json.dumps({"allowProcessSpawn": True, "networkRules": rules}))
    one, two = make_token(tokens, "one"), make_token(tokens, "two")
    watcher = {"x-api-key": make_token(tokens, "watcher", "--scope", "metrics")}
    with start_server("--tokens", str(tokens), "--policy", str(policy)) as server:
        Box(server.client, one).run("true")
        until(lambda: "warmcell_live_cages 2.0" in server.client.get("/metrics", headers=watcher).text)
        box = Box(server.client, two)
        assert box.run(ASK_PROXY)[0] == 0

        def row() -> dict[str, Any]:
            return next(row for row in usage(server, two) if row["sandbox"] == box.id)

        until(lambda: row()["egress_sent_bytes"] > 40 and row()["egress_received_bytes"] > 40)
        until(lambda: row()["runs"] == 1 and row()["cpu_seconds"] > 0)
        assert not any(row["egress_sent_bytes"] for row in usage(server, one))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_bytes_of_a_sandbox_are_seen_while_it_exists(start_server: Start, workers: str) -> None:
    with start_server("--workers", workers) as server:
        await_workers(server)
        at = create_sandbox(server.client)
        server.client.put(f"{at}/files/a", content=bytes(300_000))

        def stored_bytes() -> list[float]:
            """Empty until the worker of the sandbox has written its figures, every two seconds."""
            rows = server.client.get("/v1/usage").json()["usage"]
            return [row["stored_bytes"] for row in rows if row["sandbox"] == at.rpartition("/")[2]]

        until(lambda: [300_000 <= size < 400_000 for size in stored_bytes()] == [True])
        server.client.delete(at)
        until(lambda: stored_bytes() == [0])
        assert server.client.get("/v1/usage", params={"format": "csv"}).text.partition("\n")[0].endswith("stored_bytes")
