"""`/v1/sandboxes`, and the isolation of tenants."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.conftest import Server, make_token
from tests.serve.requests import create_sandbox

from warmcell.interfaces.serve.e2b.creation import Create


def test_a_sandbox_keeps_its_files(server: Server) -> None:
    client = server.client
    at = create_sandbox(client, env={"A": "b"}, metadata={"for": "test"})
    assert client.get(at).json()["metadata"] == {"for": "test"}
    assert client.put(f"{at}/files/dir/in.txt", content=b"\xff\0x").status_code == 204
    ran = client.post(f"{at}/sh", json={"script": "cp dir/in.txt out; echo $A"}).json()
    assert (ran["status"], ran["stdout"]) == ("success", "b\n")
    assert client.get(f"{at}/files/out").content == b"\xff\0x"
    assert [entry["name"] for entry in client.get(f"{at}/files").json()] == ["dir", "out"]
    assert {(item["path"], item["kind"]) for item in client.get(f"{at}/diff").json()} >= {("out", "created")}
    code = "import os; print(sorted(os.listdir()))"
    assert client.post(f"{at}/run", json={"code": code}).json()["stdout"] == "['dir', 'out']\n"
    argv = {"command": "cat", "args": ["-"], "stdin": "in"}
    assert client.post(f"{at}/exec", json=argv).json()["stdout"] == "in"
    assert client.delete(f"{at}/files/dir").status_code == 204
    assert client.get(f"{at}/files/dir/in.txt").status_code == 404
    assert client.get(f"{at}/files/../../../etc/passwd").status_code in (404, 422)
    assert client.get(f"{at}/files/%2e%2e/%2e%2e/etc/passwd").status_code == 422
    assert client.delete(at).status_code == 204
    assert client.get(at).status_code == 404
    assert client.post(f"{at}/sh", json={"script": "true"}).status_code == 404


def test_a_sandbox_ends_by_itself(server: Server) -> None:
    at = create_sandbox(server.client, lifetime=1)
    deadline = time.monotonic() + 30
    while server.client.get(at).status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert server.client.get(at).status_code == 404


@pytest.mark.attack("S2-30")
@pytest.mark.attack("LK-06")
def test_another_tenants_sandbox_is_not_there(start_server: Callable[..., Any], tmp_path: Path) -> None:
    """Every way to name it answers exactly as for an id that never was, and for one that is no more."""
    file = tmp_path / "tokens.json"
    tokens = [make_token(file, "one", "--sandboxes", "2"), make_token(file, "two")]
    with start_server("--tokens", str(file)) as server:
        one, two = (
            httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {token}"}, timeout=60, trust_env=False)
            for token in tokens
        )
        at, gone = create_sandbox(one), create_sandbox(one)
        assert one.put(f"{at}/files/secret", content=b"s").status_code == 204
        assert one.delete(gone).status_code == 204
        assert two.get("/v1/sandboxes").json() == []
        assert len(one.get("/v1/sandboxes").json()) == 1
        for method, path, body in (
            ("GET", "", None),
            ("DELETE", "", None),
            ("GET", "/files/secret", None),
            ("PUT", "/files/secret", {}),
            ("DELETE", "/files/secret", None),
            ("GET", "/files", None),
            ("GET", "/diff", None),
            ("POST", "/sh", {"script": "cat secret"}),
            ("POST", "/exec", {"command": "cat", "args": ["secret"]}),
            ("POST", "/run", {"code": "print(1)"}),
        ):
            never = "/v1/sandboxes/" + "0" * 32
            answers = {two.request(method, where + path, json=body).content for where in (at, gone, never)}
            assert len(answers) == 1
            assert two.request(method, at + path, json=body).status_code == 404
        assert one.get(f"{at}/files/secret").content == b"s"
        identity = at.rpartition("/")[2]
        assert len(identity) == 32 and identity != gone.rpartition("/")[2]
        for near in (identity[:-1], identity.upper(), identity + "0", identity[:-1] + "g"):
            assert one.get(f"/v1/sandboxes/{near}").status_code == 404 or near == identity
        create_sandbox(one)
        refused = one.post("/v1/sandboxes", json={})  # its quota, whatever others have
        assert refused.status_code == 429 and "quota" in refused.text and "serve --sandboxes" in refused.text
        create_sandbox(two)


@pytest.mark.attack("S3-18")
def test_what_a_sandbox_makes_the_server_keep_is_bounded(server: Server) -> None:
    """Metadata and requests are kept with the sandbox, and lists show the metadata of all."""
    client, large = server.client, {"a": "x" * 70_000}
    before = {each["id"] for each in client.get("/v1/sandboxes").json()}  # other tests leave some
    many = {str(number): "" for number in range(600)}
    for metadata in (large, many):
        refused = client.post("/sandboxes", json={"templateID": "base", "metadata": metadata})
        assert refused.status_code == 400 and "metadata" in refused.text
    refused = client.post("/v1/sandboxes", json={"metadata": large})
    assert refused.status_code == 422 and "metadata" in refused.text
    for path in ("/v1/sandboxes", "/sandboxes"):
        too_large = client.post(path, json={"templateID": "base", "env": {"A": "x" * (2 << 20)}})
        assert too_large.status_code == 413, too_large.text
    assert before >= {each["id"] for each in client.get("/v1/sandboxes").json()}
    at, pairs = create_sandbox(client, metadata={"a": "x" * 40_000}), {"b": "x" * 40_000}
    assert client.post(f"{at}/fork", json={"metadata": pairs}).status_code == 422, "a fork has the pairs of both"
    assert client.post(f"{at}/fork", json={"metadata": {"a": "y"}}).status_code == 201


@pytest.mark.attack("S3-18")
def test_fields_that_are_not_read_are_not_kept() -> None:
    asked = Create.model_validate({"autoResume": {"enabled": True, "more": [[]] * 1000}, "other": "x"})
    assert asked.model_dump(exclude_unset=True) == {"autoResume": {"enabled": True}}
