"""Client and AsyncClient: the library's own words, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.serve.conftest import Server

from warmcell import (
    AsyncClient,
    BackendUnavailable,
    Client,
    ExecRequest,
    ExecutionTimeout,
    InvalidRequest,
    SandboxBackend,
    SandboxDestroyed,
    SandboxError,
)
from warmcell.core.output_events import OutputEvent, ResultEvent
from warmcell.interfaces.client.connection import Connection
from warmcell.interfaces.client.wire import content
from warmcell.interfaces.serve.requests import parse_model
from warmcell.interfaces.serve.v1.models import CodeBody, RunBody


async def test_a_client_is_a_backend(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        assert isinstance(client, SandboxBackend)
        code = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()); open('f', 'w').write('x')"
        request = ExecRequest("python", code, 30, stdin=b"\xff\0", files={"a": b"\xfe"}, fetch_files=["f"])
        result = await client.execute(request)
        assert (result.stdout_bytes, result.exit_code, result.files) == (b"\xff\0", 0, {"f": b"x"})
        assert result.enforced.isolation_class == "process+sandbox"
        assert "python" in client.capabilities().supported_languages
        events = [event async for event in client.stream(ExecRequest("python", "print(1)", 30))]
        assert isinstance(events[0], OutputEvent) and events[0].data == b"1\n"
        assert isinstance(events[-1], ResultEvent) and events[-1].result.stdout == "1\n"


def test_errors_are_the_same_errors(server: Server) -> None:
    with Client(server.url) as client:
        with pytest.raises(ExecutionTimeout, match="timed out") as late:
            client.execute(ExecRequest("python", "print('so far', flush=True)\nwhile True: pass", 1))
        assert late.value.result is not None and late.value.result.stdout == "so far\n"
        assert (late.value.fault, late.value.retryable) == ("guest", False)
        with pytest.raises(InvalidRequest, match="klingon"):
            client.execute(ExecRequest("klingon", "x", 1))


def test_a_fork_may_live_as_long_as_its_parent(server: Server) -> None:
    """It ended after an hour, however long its parent was to last."""
    with (
        Client(server.url) as client,
        client.sandbox(lifetime=7200, forkable=True) as sandbox,
        sandbox.fork() as fork,
        sandbox.session("python") as session,
        session.fork().sandbox as branch,
    ):
        listed = {row["id"]: row for row in server.client.get("/v1/sandboxes").json()}
        rows = [listed[each.id] for each in (sandbox, fork, branch)]
        assert [round(row["expires"] - row["created"]) for row in rows] == [7200] * 3


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 10**5000},
        {"lifetime": float("nan")},
        {"lifetime": "5"},
        {"env": 5},
        {"metadata": 5},
        {"metadata": {"a": object()}},
        {"limits": 5},
        {"gpus": 5},
    ],
)
def test_odd_options_of_a_sandbox_are_typed_errors(server: Server, options: dict[str, Any]) -> None:
    with Client(server.url) as client, pytest.raises(InvalidRequest):
        client.sandbox(**options)


def test_a_url_with_a_path_is_named_as_the_mistake(server: Server) -> None:
    with (
        Client(server.url + "/v1") as client,
        pytest.raises(BackendUnavailable, match=r"/v1/v1/run is not a path .*alone"),
    ):
        client.execute(ExecRequest("python", "print(1)", 30))


def test_a_wrong_token_is_not_called_a_missing_one(start_server: Callable[..., Any]) -> None:
    request = ExecRequest("python", "print(1)", 30)
    with start_server("--token", "secret") as server:
        for token, message in ((None, "a token is required"), ("wrong", "unknown or revoked token")):
            with Client(server.url, token=token) as client, pytest.raises(BackendUnavailable, match=message) as refused:
                client.execute(request)
            assert refused.value.fault == "caller"


def test_what_is_no_request_is_refused_by_name(server: Server) -> None:
    with Client(server.url) as client, pytest.raises(InvalidRequest, match="request: must be ExecRequest, not str"):
        client.execute("print(1)")  # type: ignore[arg-type]


def test_a_sandbox_over_there(server: Server) -> None:
    with Client(server.url) as client, client.sandbox(env={"A": "b"}) as sandbox:
        sandbox.write_file("dir/a b.txt", "text")
        assert sandbox.sh("cat 'dir/a b.txt'; echo $A").stdout == "textb\n"
        assert sandbox.exec("cat", ["-"], stdin=b"in").stdout == "in"
        assert sandbox.run("print(open('dir/a b.txt').read())").stdout == "text\n"
        assert [entry.name for entry in sandbox.list_dir("dir")] == ["a b.txt"]
        assert sandbox.read_text("dir/a b.txt") == "text"
        sandbox.remove("dir")
        with pytest.raises(FileNotFoundError):
            sandbox.read_file("dir/a b.txt")
        sandbox.destroy()
        with pytest.raises(SandboxDestroyed):
            sandbox.sh("true")
    with pytest.raises(BackendUnavailable, match="closed"):
        sandbox.sh("true")


@pytest.mark.parametrize(("language", "reason"), [("wasm", "wasm"), ("python", "bytes are for wasm only")])
def test_bytes_as_code_reach_the_server(server: Server, language: str, reason: str) -> None:
    """It runs no WebAssembly and says so."""
    module = b"\0asm\1\0\0\0"
    with Client(server.url) as client:
        if language == "wasm":
            with pytest.raises(SandboxError, match=reason):
                client.execute(ExecRequest(language, module, 5))
        with client.sandbox() as sandbox, pytest.raises(SandboxError, match=reason):
            sandbox.run(module, language)


@pytest.mark.parametrize("body", [CodeBody, RunBody])
@pytest.mark.parametrize("code", [b"\0asm", "print(1)"])
def test_code_survives_the_wire(body: type[CodeBody] | type[RunBody], code: str | bytes) -> None:
    asked = {"language": "wasm", "code": content(code), "timeout": 5}
    assert parse_model(json.dumps(asked).encode(), body).code == code


@pytest.mark.parametrize("code", ["", 5, {"base64": "!"}, {"base64": 5}, {"base64": "", "more": 1}, {}])
def test_wrong_code_is_named(code: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_model(json.dumps({"language": "wasm", "code": code, "timeout": 5}).encode(), RunBody)
    assert caught.value.field == "code"


@pytest.mark.parametrize("call", [lambda client: client.execute(ExecRequest("python", "1", 1)), Client.capabilities])
def test_an_unreachable_server_is_a_typed_error(call: Callable[[Client], object]) -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(SandboxError, match="could not be reached"):
        call(client)


def test_capabilities_of_a_newer_server_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"timeout": True, "a_later_limit": True}
    plain = {"languages": ["python"], "isolation_class": "process", "enforced_limits": limits, "network": []}
    monkeypatch.setattr(Connection, "get_blocking", lambda connection, path: plain | {"versions": {}})
    with Client("http://127.0.0.1:9") as client:
        assert client.capabilities().enforced_limits.timeout is True
