"""`/v1/history`: what charts are drawn from. Counts only; nothing in it belongs to any tenant."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.event_streams import event, event_stream, wants_events
from warmcell.interfaces.serve.exchange import answer
from warmcell.interfaces.serve.service import Service, service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.observe.history import STEP_SECONDS, History

#: How often whoever watches hears something new.
LIVE_SECONDS = 1.0


class Watched:
    """Listens until `close`."""

    def __init__(self) -> None:
        self._history = History()
        self._began = time.time()

    async def __call__(self, request: Request, tenant: Tenant) -> Response:
        """Runs, latency and memory in the last half hour, in steps of five seconds; as events, live."""
        service = service_of(request)
        return event_stream(self._live(service)) if wants_events(request) else answer(self._told(service, 0))

    async def _live(self, service: Service) -> AsyncIterator[str]:
        """First all that is known; then, each second, the steps that have changed. Ends when the server is to end."""
        since = 0.0
        while not service.is_draining:
            told = self._told(service, since)
            yield event("history", told)
            # The step before the last one is told once more, with what came in its last moment.
            since = told["steps"][-1]["time"] - STEP_SECONDS
            await asyncio.sleep(LIVE_SECONDS)

    def _told(self, service: Service, since: float) -> dict[str, Any]:
        return {
            "began": self._began,
            "step": STEP_SECONDS,
            "sandboxes": len(service.held.all()),
            "queue": service.queue.waiting,
            "steps": self._history.steps(since),
        }

    def routes(self) -> list[Any]:
        return [door("GET", "/v1/history", self, "metrics", answers=("History", "text/event-stream"))]

    def close(self) -> None:
        self._history.close()
