"""A request that outlasts the shutdown: uvicorn cancels it, and without a response would send one of its own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from warmcell.interfaces.serve.middleware import RequestLog


@pytest.mark.parametrize("has_started", [False, True])
async def test_its_client_gets_an_error_about_the_host(has_started: bool) -> None:
    sent: list[Any] = []
    start = {"type": "http.response.start", "status": 200, "headers": []}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if has_started:
            await send(start)
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/run", "headers": []}
    request = asyncio.ensure_future(RequestLog(app)(scope, lambda: None, send))
    await asyncio.sleep(0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    if has_started:
        assert sent == [start]
        return
    assert sent[0]["status"] == 503
    error = json.loads(b"".join(message["body"] for message in sent[1:]))["error"]
    assert (error["fault"], error["retryable"]) == ("host", True)
