"""Bodies that wait in memory after their handlers have returned: of streams, and of runs in the background."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from warmcell.interfaces.serve.app import make_app
from warmcell.interfaces.serve.requests import BodyMemory
from warmcell.interfaces.serve.service import Service
from warmcell.interfaces.serve.settings import Settings
from warmcell.lifetime.fair_semaphore import FairSemaphore

BODY = json.dumps({"language": "python", "code": "#" * 1000, "timeout": 5}).encode()


class Connection:
    """A client that sends a run, and reads until it leaves."""

    def __init__(self, app: Any, path: str) -> None:
        self._parts: list[dict[str, Any]] = [{"type": "http.request", "body": BODY, "more_body": False}]
        self._has_left = asyncio.Event()
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        headers = {"host": "127.0.0.1", "content-type": "application/json", "accept": "text/event-stream"}
        scope = {
            "type": "http",
            "method": "POST",
            "http_version": "1.1",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        self._task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._parts:
            return self._parts.pop()
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status.set_result(message["status"])

    async def leave(self) -> None:
        self._has_left.set()
        await self._task


async def test_bodies_of_what_waits_for_a_slot_count_until_it_ends() -> None:
    """They were given back as soon as a stream or a background run had begun: a token had gigabytes in the queue."""
    service = Service(Settings())
    app = make_app(service)
    memory = app.state.bodies = BodyMemory(4 * len(BODY))  # half of it for one tenant
    service.queue = FairSemaphore(1)
    assert service.queue.try_acquire("another")
    try:
        stream, background = Connection(app, "/v1/run"), Connection(app, "/v1/runs")
        assert (await stream.status, await background.status) == (200, 201)
        for path in ("/v1/run", "/v1/runs"):
            refused = Connection(app, path)
            assert await refused.status == 429
            await refused.leave()
        await stream.leave()
        later = Connection(app, "/v1/run")
        assert await later.status == 200
        await later.leave()
        await background.leave()
    finally:
        await service.aclose()
    assert memory._used.total() == 0
