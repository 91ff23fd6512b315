"""A token that was revoked, replaced or narrowed has its present rights, also in what had begun before."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.helpers import until, until_async
from tests.serve.conftest import Server, make_token

from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.serve.app import make_app
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings

PROGRAM = {"language": "python", "code": "print(1)"}
BODIES: dict[str, Any] = {
    "/v1/run": PROGRAM | {"timeout": 5},
    "/v1/runs": PROGRAM | {"timeout": 5},
    "/v1/sandboxes": {"lifetime": 60},
    "/sandboxes": {"templateID": "base", "timeout": 60},
    "/run_code": PROGRAM,
    "/run_jupyter": {"cells": ["1"]},
    "/api/v2/execute": {"language": "python", "version": "*", "files": [{"content": "print(1)"}]},
    "/mcp": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
}


class Tokens:
    """A file of tokens with one, `token`, and a server that uses it."""

    def __init__(self, file: Path, server: Server, token: str) -> None:
        self._file, self.server, self.token = file, server, token
        self.headers = {"Authorization": f"Bearer {token}", "X-API-KEY": token}

    def change(self, **fields: Any) -> None:
        """Change fields of the token, or without any remove it. Returns when the server knows."""
        document = json.loads(self._file.read_text())
        document["tokens"] = [token | fields for token in document["tokens"] if fields]
        self._file.write_text(json.dumps(document))
        self.server.process.send_signal(signal.SIGHUP)
        # Not by what it says: it reloads, and says so, once more when it finds the change by itself.
        until(lambda: self._is_known(fields))

    def _is_known(self, fields: dict[str, Any]) -> bool:
        answer = httpx.get(f"{self.server.url}/v1/identity", headers=self.headers, timeout=60, trust_env=False)
        if "scopes" not in fields:
            return answer.status_code == 401
        return answer.status_code == 200 and sorted(answer.json()["scopes"]) == sorted(fields["scopes"])

    def open(self, head: str, body: bytes = b"", headers: dict[str, str] | None = None) -> socket.socket:
        """Send a request, or its beginning."""
        url = httpx.URL(self.server.url)
        connection = socket.create_connection((url.host, url.port or 0), timeout=60)
        lines = [f"{head} HTTP/1.1", f"Host: {url.host}:{url.port}"]
        lines += [f"{name}: {value}" for name, value in (self.headers | (headers or {})).items()]
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return connection

    def follow(self, path: str) -> socket.socket:
        """A stream of events that has begun."""
        connection = self.open(f"GET {path}", headers={"Accept": "text/event-stream"})
        assert connection.recv(12) == b"HTTP/1.1 200"
        return connection


@pytest.fixture
def tokens(tmp_path: Path, start_server: Callable[..., Any]) -> Iterator[Tokens]:
    file = tmp_path / "tokens.json"
    token = make_token(file, "one", *(f"--scope={scope}" for scope in ("run", "sandbox", "metrics")))
    with start_server("--tokens", str(file)) as server:
        yield Tokens(file, server, token)


def has_ended(connection: socket.socket) -> bool:
    """Read what there is, until the end. A stream that goes on times out."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.attack("S3-22")
def test_a_body_that_comes_after_the_revocation(tokens: Tokens) -> None:
    with ExitStack() as stack:
        opened = {}
        for path, plain in BODIES.items():
            body = json.dumps(plain).encode()
            kind = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            kind["Accept"] = "application/json, text/event-stream"
            opened[path] = stack.enter_context(tokens.open(f"POST {path}", body[:1], kind)), body[1:]
        # In the order of the connections: those requests have been accepted.
        assert tokens.server.client.get("/v1/sandboxes", headers=tokens.headers).json() == []
        tokens.change()
        for path, (connection, rest) in opened.items():
            connection.sendall(rest)
            assert connection.recv(12) == b"HTTP/1.1 401", path


@pytest.mark.attack("S3-22")
def test_a_token_that_lost_a_scope_loses_its_streams(tokens: Tokens) -> None:
    ask = httpx.Client(base_url=tokens.server.url, headers=tokens.headers, timeout=60, trust_env=False)
    with ask, ExitStack() as stack:
        sandbox = f"/v1/sandboxes/{ask.post('/v1/sandboxes', json={}).json()['id']}"
        command = {"command": "while :; do echo x; sleep 0.2; done"}
        process = ask.post(f"{sandbox}/processes", json=command).json()
        port = ask.post(f"{sandbox}/ports", json={"port": 8000}).json()["host_port"]
        run = ask.post("/v1/runs", json=PROGRAM | {"code": "import time; time.sleep(100)", "timeout": 200}).json()["id"]
        history = stack.enter_context(tokens.follow("/v1/history"))
        output = stack.enter_context(tokens.follow(f"{sandbox}/processes/{process['pid']}/output"))

        tokens.change(scopes=["run", "sandbox"])
        assert has_ended(history)
        assert ask.get(sandbox).status_code == 200
        assert output.recv(1)
        tokens.change(scopes=["run"])
        assert has_ended(output)
        until(lambda: _is_refused(port))
        assert ask.get(f"/v1/runs/{run}").json()["is_running"]
        tokens.change(scopes=["sandbox"])
        assert ask.get("/v1/sandboxes").json() == []
        tokens.change(scopes=["run", "sandbox"])
        until(lambda: not ask.get(f"/v1/runs/{run}").json()["is_running"])


def _is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionError:
        return True
    return False


@pytest.mark.attack("S3-22")
def test_a_replaced_token_loses_its_streams_and_keeps_its_sandboxes(tokens: Tokens) -> None:
    made = tokens.server.client.post("/v1/sandboxes", json={}, headers=tokens.headers).json()
    with tokens.follow("/v1/history") as history:
        tokens.change(sha256=sha256(b"another").hexdigest())
        assert has_ended(history)
    listed = tokens.server.client.get("/v1/sandboxes", headers={"Authorization": "Bearer another"}).json()
    assert [sandbox["id"] for sandbox in listed] == [made["id"]]


@pytest.mark.attack("S3-22")
async def test_a_sandbox_that_is_made_during_the_revocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokens.json"
    token = make_token(file, "one")
    service = Service(Settings(tokens=str(file)))
    find_place = service.find_place

    async def revoke_meanwhile(*arguments: Any) -> Any:
        file.write_text('{"tokens": []}')
        service.reload()
        await until_async(lambda: not service._background)
        return await find_place(*arguments)

    monkeypatch.setattr(service, "find_place", revoke_meanwhile)
    transport = httpx.ASGITransport(make_app(service))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            await client.post("/v1/sandboxes", json={}, headers={"Authorization": f"Bearer {token}"})
            await until_async(lambda: not service._background)
            assert service.sandboxes.all() == []
    finally:
        await service.aclose()


@pytest.mark.attack("S3-22")
async def test_a_policy_without_a_backend_keeps_no_later_revocation_from_holding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reload raised, which ended the watch of the token file: sandboxes of revoked tokens went on."""
    file, policy = tmp_path / "tokens.json", tmp_path / "policy.toml"
    make_token(file, "one")
    policy.write_text("allowProcessSpawn = true\n")
    service = Service(Settings(tokens=str(file), policy=str(policy)))

    def refuse(*_: object) -> Any:
        raise InvalidRequest("lies in a directory that guests may write", field="python_path")

    try:
        (tenant,) = service._tenants
        service.sandboxes.add(lambda: service.make_sandbox(tenant), tenant, 60.0, {})
        before = service.policy, service.policy_version, service.backend, service._tenants
        with monkeypatch.context() as patched:
            patched.setattr(service, "_make_backend", refuse)
            policy.write_text("allowProcessSpawn = false\n")
            service.reload()
        assert (service.policy, service.policy_version, service.backend, service._tenants) == before
        file.write_text('{"tokens": []}')
        service.reload()
        assert service.policy is not None and not service.policy.allow_process_spawn
        assert service.backend is not before[2] and service.policy_version == before[1] + 1
        await until_async(lambda: not service.sandboxes.all())
    finally:
        await service.aclose()
