"""`/v1/history`: what charts are drawn from. Counts only; nothing in it belongs to any tenant."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.exchange import answer
from warmcell.interfaces.serve.service import Service, service_of
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.event_streams import event, event_stream, wants_events
from warmcell.interfaces.serve.v1.queries import number_in_query
from warmcell.observe.history import STEP_SECONDS, History

PATH = "/v1/history"
#: How often whoever watches hears something new.
LIVE_SECONDS = 1.0
#: Tells all that is known since a moment.
Told = Callable[[float], Awaitable[dict[str, Any]]]


class Watched:
    """Listens until `close`."""

    def __init__(self) -> None:
        self._history = History()
        self._began = time.time()

    async def __call__(self, request: Request, tenant: Tenant) -> Response:
        """Runs, latency and memory in the last half hour, in steps of five seconds (`?since=`); as events, live."""
        service = service_of(request)
        if not wants_events(request):
            return answer(self._told(service, number_in_query(request, "since", 0)))

        async def told(since: float) -> dict[str, Any]:
            return self._told(service, since)

        return event_stream(live(told, service.draining))

    def _told(self, service: Service, since: float) -> dict[str, Any]:
        return {
            "began": self._began,
            "step": STEP_SECONDS,
            "sandboxes": len(service.held.all()),
            "queue": service.queue.waiting,
            "steps": self._history.steps(since),
        }

    def routes(self) -> list[Any]:
        return [door("GET", PATH, self, "metrics", answers=("History", "text/event-stream"))]

    def close(self) -> None:
        self._history.close()


async def live(told: Told, ending: asyncio.Event) -> AsyncIterator[str]:
    """First all that is known; then, each second, the steps that have changed. Ends when the server is to end."""
    since = 0.0
    while not ending.is_set():
        news = await told(since)
        yield event("history", news)
        # The step before the last one is told once more, with what came in its last moment.
        since = news["steps"][-1]["time"] - STEP_SECONDS
        await asyncio.sleep(LIVE_SECONDS)


def joined_history(bodies: Iterable[bytes]) -> dict[str, Any]:
    """What several processes say, as one. Latencies are those of the slowest: never better than they are."""
    every = [json.loads(body) for body in bodies]
    steps: dict[int, dict[str, Any]] = {}
    for told in every:
        for step in told["steps"]:
            known = steps.get(step["time"])
            steps[step["time"]] = step if known is None else _joined_step(known, step)
    return {
        "began": min(told["began"] for told in every),
        "step": STEP_SECONDS,
        "sandboxes": sum(told["sandboxes"] for told in every),
        "queue": max(told["queue"] for told in every),  # there is one, which each of them knows
        "steps": [steps[time] for time in sorted(steps)],
    }


def _joined_step(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    added = {name: one[name] + other[name] for name in ("running", "waiting", "resident")}
    slowest = {name: max(filter(None, (one[name], other[name])), default=None) for name in ("p50", "p95")}
    outcomes = dict(Counter(one["outcomes"]) + Counter(other["outcomes"]))
    most = max(one["memory"], other["memory"])
    return {"time": one["time"], "outcomes": outcomes, "memory": most, **slowest, **added}
