"""Two MCP requests of one session with one id: the second is refused until the first one is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers import PATIENCE, require

from warmcell.interfaces.serve.mcp_route import McpApp
from warmcell.interfaces.serve.requests import MAX_PLAIN_BYTES, BodyMemory
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings


class Sdk:
    """Answers when it may."""

    def __init__(self) -> None:
        self.bodies, self.may_answer = list[bytes](), asyncio.Event()
        self._session_owners: dict[str, Any] = {}

    async def asgi_app(self, scope: Any, receive: Any, send: Any) -> None:
        self.bodies.append((await receive())["body"])
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def wait_for(self, number: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.bodies) < number:
                await asyncio.sleep(0)


@pytest.fixture(params=["warmcell mcp", "warmcell serve"])
async def door(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Sdk, Any]]:
    require(find_spec("mcp"), "mcp is not installed")
    from warmcell.interfaces.mcp.transports import _BoundedMessages

    sdk, service = Sdk(), Service(Settings())

    async def start() -> Any:
        return sdk

    served = McpApp(service)
    served._starting = asyncio.ensure_future(start())
    state = SimpleNamespace(state=SimpleNamespace(service=service, bodies=BodyMemory()))
    app: Any = served if request.param == "warmcell serve" else _BoundedMessages(sdk.asgi_app)

    async def ask(message: object, session: bytes | None = b"session") -> int:
        body, statuses = json.dumps(message).encode(), list[int]()

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(event: Any) -> None:
            if event["type"] == "http.response.start":
                statuses.append(event["status"])

        headers = [] if session is None else [(b"mcp-session-id", session)]
        scope = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": headers}
        await app(scope | {"app": state}, receive, send)
        (status,) = statuses
        return status

    yield sdk, ask
    await service.aclose()


CALL = {"jsonrpc": "2.0", "method": "tools/call", "params": {}}


async def test_a_second_request_with_an_id_that_is_not_answered_is_refused(door: tuple[Sdk, Any]) -> None:
    sdk, ask = door
    first = asyncio.ensure_future(ask(CALL | {"id": 1}))
    await sdk.wait_for(1)
    for same in (1, "1"):
        async with asyncio.timeout(PATIENCE):
            assert await ask(CALL | {"id": same}) == 400
            assert await ask(CALL | {"id": same, "params": {"code": "x" * MAX_PLAIN_BYTES}}) == 400
    assert len(sdk.bodies) == 1
    sdk.may_answer.set()
    assert await first == 200
    assert await ask(CALL | {"id": 1}) == 200, "the first one is answered"


async def test_other_messages_at_the_same_time_pass(door: tuple[Sdk, Any]) -> None:
    """Other ids and sessions, requests that begin a session, notifications, and answers to requests of the server."""
    sdk, ask = door
    initialize = CALL | {"method": "initialize", "id": 1}
    answer = {"jsonrpc": "2.0", "id": 1, "result": {}}
    asked = [ask(CALL | {"id": 1}), ask(CALL | {"id": 2}), ask(CALL | {"id": 1}, b"another")]
    asked += [ask(initialize, None), ask(initialize, None), ask(CALL), ask(CALL), ask(answer), ask([CALL])]
    answers = [asyncio.ensure_future(one) for one in asked]
    await sdk.wait_for(len(asked))
    sdk.may_answer.set()
    assert await asyncio.gather(*answers) == [200] * len(asked)
