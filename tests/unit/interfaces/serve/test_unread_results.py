"""Results in memory that their clients do not read: a token with too many of them starts nothing more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

from warmcell import FakeBackend
from warmcell.core.records import replace
from warmcell.interfaces.serve import quotas
from warmcell.interfaces.serve.app import make_app
from warmcell.interfaces.serve.event_streams import stream_events
from warmcell.interfaces.serve.quotas import UnreadResults
from warmcell.interfaces.serve.service import LOCAL_TENANT, Service
from warmcell.interfaces.serve.settings import Settings

LONG = 200_000


class Reader:
    """A client that asks for a run, and reads no more than the head of the response until `read`."""

    def __init__(self, app: Any) -> None:
        body = json.dumps({"language": "python", "code": "print()", "timeout": 5}).encode()
        self._parts: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
        self._may_read = asyncio.Event()
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        scope = {
            "type": "http",
            "method": "POST",
            "http_version": "1.1",
            "scheme": "http",
            "path": "/v1/run",
            "raw_path": b"/v1/run",
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        }
        self._task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._parts:
            return self._parts.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status.set_result(message["status"])
        else:
            await self._may_read.wait()

    async def read(self) -> None:
        self._may_read.set()
        await self._task


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    """A service whose tenants may have one long result that is not read. Every run prints such a result."""
    monkeypatch.setattr(quotas, "MAX_UNREAD", LONG)
    made = Service(Settings())
    await made.backend.aclose()
    backend: Any = FakeBackend(lambda request: "x" * LONG)
    made.backend = backend
    yield made
    await made.aclose()


async def test_a_token_whose_results_are_not_read_starts_nothing(service: Service) -> None:
    """Each of its 512 connections could keep the result of a run, of a hundred megabytes."""
    app = make_app(service)
    first = Reader(app)
    assert await first.status == 200
    second = Reader(app)
    assert await second.status == 429
    await second.read()
    async with service.run_slot(replace(LOCAL_TENANT, id="another")):
        pass
    await first.read()
    third = Reader(app)
    assert await third.status == 200
    await third.read()


async def test_events_count_until_they_are_read(service: Service) -> None:
    async def work(emit: object) -> object:
        return {"stdout": "x" * (LONG + 1)}

    events = stream_events(work, partial(service.concurrency.count_unread, LOCAL_TENANT))
    async with aclosing(events):  # type: ignore[type-var]
        await anext(events)
        with pytest.raises(UnreadResults, match="not read"):
            async with service.run_slot(LOCAL_TENANT):
                pass
    async with service.run_slot(LOCAL_TENANT):
        pass
