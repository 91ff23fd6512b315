"""MCP sessions that begin at the same time count towards the quota before the SDK knows them."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import require

from warmcell.core.errors import ProvisionFailed
from warmcell.core.records import replace
from warmcell.interfaces.serve.mcp_route import McpApp, TenantSandbox
from warmcell.interfaces.serve.requests import MAX_PLAIN_BYTES, BodyMemory, check_mcp_message
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.interfaces.serve.tokens import add_token


@pytest.mark.attack("S3-20")
async def test_sessions_that_begin_at_once_are_counted(tmp_path: Path) -> None:
    require(find_spec("mcp"), "mcp is not installed")
    file, statuses, is_answered = str(tmp_path / "tokens.json"), list[int](), asyncio.Event()
    token = add_token(file, "one", sandboxes=2)[0]
    service = Service(Settings(tokens=file))
    app = McpApp(service)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await is_answered.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def start() -> Any:
        return SimpleNamespace(_session_owners={}, asgi_app=answer)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    def ask() -> asyncio.Future[None]:
        state = SimpleNamespace(state=SimpleNamespace(service=service, bodies=BodyMemory()))
        scope = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "app": state}
        return asyncio.ensure_future(app(scope | {"headers": [(b"x-api-key", token.encode())]}, receive, send))

    app._starting = asyncio.ensure_future(start())
    try:
        asked = [ask() for _ in range(5)]
        await asyncio.wait(asked, timeout=0.2)
        is_answered.set()
        await asyncio.gather(*asked)
        assert sorted(statuses) == [200, 200, 429, 429, 429]
        await ask()  # they have ended without a session, and hold nothing
        assert statuses[-1] == 200
    finally:
        await service.aclose()


async def test_a_session_can_be_ended_while_all_connections_are_streams(tmp_path: Path) -> None:
    """Its DELETE was refused: the session and its sandbox stayed as long as the streams."""
    require(find_spec("mcp"), "mcp is not installed")
    file, statuses, may_end = str(tmp_path / "tokens.json"), list[int](), asyncio.Event()
    token = add_token(file, "one", connections=1)[0]
    service = Service(Settings(tokens=file))
    app = McpApp(service)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            await may_end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def start() -> Any:
        return SimpleNamespace(_session_owners={}, asgi_app=answer)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    def ask(method: str) -> asyncio.Future[None]:
        state = SimpleNamespace(state=SimpleNamespace(service=service, bodies=BodyMemory()))
        scope: dict[str, Any] = {"type": "http", "method": method, "path": "/mcp", "query_string": b"", "app": state}
        scope["headers"] = [(b"x-api-key", token.encode()), (b"mcp-session-id", b"1")]
        return asyncio.ensure_future(app(scope, None, send))

    app._starting = asyncio.ensure_future(start())
    try:
        stream = ask("GET")
        await asyncio.wait([stream], timeout=0.2)
        await ask("GET")
        await ask("DELETE")
        assert statuses == [429, 200]
        may_end.set()
        await stream
    finally:
        await service.aclose()


async def test_a_session_of_a_token_that_was_revoked_meanwhile_gets_no_sandbox(tmp_path: Path) -> None:
    """The reload came between the request and its sandbox, found none to end, and the sandbox was made after it."""
    file = str(tmp_path / "tokens.json")
    tenant = add_token(file, "one")[1]
    service = Service(Settings(tokens=file))
    try:
        service._tenants = ()
        with pytest.raises(ProvisionFailed, match="revoked"):
            TenantSandbox(service, tenant)
        service._tenants = (replace(tenant, scopes=("run",)),)
        with pytest.raises(ProvisionFailed, match="revoked"):
            TenantSandbox(service, tenant)
        assert service.sandboxes.all() == []
        service._tenants = (tenant,)
        TenantSandbox(service, tenant)
        assert len(service.sandboxes.all()) == 1
    finally:
        await service.aclose()


LONG = "x" * MAX_PLAIN_BYTES


@pytest.mark.attack("S3-10")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"method": "initialize", "params": {"capabilities": {"experimental": {"a": LONG}}}}, 413),
        ({"method": "tools/call", "params": {"arguments": {"code": [[]] * 20_000}}}, 413),
        ([{"method": "tools/call", "params": LONG}], 413),
        (LONG, 413),
        (b'{"method": "tools/call", "method": "initialize", "params": "%s"}' % LONG.encode(), 413),
        (b"[" * 100_000, 413),
        (b"\xff" * 100_000, 400),
    ],
)
async def test_what_the_sdk_would_keep_is_small(body: object, status: int) -> None:
    """It keeps the last `initialize` of a session as objects, until the session ends."""
    with pytest.raises(HttpError) as refused:
        await check_mcp_message(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert refused.value.status == status


async def test_tool_calls_may_have_long_texts() -> None:
    sent = {"method": "tools/call", "params": {"arguments": {"code": LONG + "\n\udc80"}}}
    assert json.loads(await check_mcp_message(json.dumps(sent).encode())) == sent
    assert await check_mcp_message(b"small, and the SDK's to refuse") == b"small, and the SDK's to refuse"
