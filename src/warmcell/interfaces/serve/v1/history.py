"""`/v1/history`: counts over time, for charts. Contains nothing of a tenant."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.event_streams import event_stream, format_event, wants_events
from warmcell.interfaces.serve.quotas import TenantQuota
from warmcell.interfaces.serve.responses import HttpError, json_response
from warmcell.interfaces.serve.routing import route
from warmcell.interfaces.serve.service import Service, get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import number_in_query
from warmcell.observe.history import STEP_SECONDS, History

PATH = "/v1/history"
#: Interval of the live stream.
LIVE_SECONDS = 1.0
#: Open streams per tenant, as of WebSockets.
MAX_STREAMS = 64
#: Reads the history since a Unix time.
ReadHistory = Callable[[float], Awaitable[dict[str, Any]]]


class HistoryRoute:
    """Collects events until `close`."""

    def __init__(self) -> None:
        self._history = History()
        self._began = time.time()
        self._streams = TenantQuota()

    async def __call__(self, request: Request, tenant: Tenant) -> Response:
        """Runs, latency and memory in the last half hour, in steps of five seconds (`?since=`); as events, live."""
        service = get_service(request)
        if not wants_events(request):
            return json_response(self._read(service, number_in_query(request, "since", 0)))

        async def read(since: float) -> dict[str, Any]:
            return self._read(service, since)

        return open_stream(self._streams, tenant.id, read, service.draining)

    def _read(self, service: Service, since: float) -> dict[str, Any]:
        return {
            "began": self._began,
            "step": STEP_SECONDS,
            "sandboxes": len(service.sandboxes.all()),
            "queue": service.queue.waiting,
            "steps": self._history.steps(since),
        }

    def routes(self) -> list[Any]:
        return [route("GET", PATH, self, "metrics", answers=("History", "text/event-stream"))]

    def close(self) -> None:
        self._history.close()


def open_stream(streams: TenantQuota, owner: str, read: ReadHistory, ending: asyncio.Event) -> Response:
    """Raises `HttpError` 429 if the owner has all streams that it may have."""
    if not streams.take(owner, MAX_STREAMS):
        message = f"this token already has {MAX_STREAMS} open streams of history"
        raise HttpError(429, message, headers={"Retry-After": "5"})

    async def release() -> None:
        streams.release(owner)

    return event_stream(_stream_history(read, ending), release)


async def _stream_history(read: ReadHistory, ending: asyncio.Event) -> AsyncIterator[str]:
    """Yield the whole history, then every second the steps that have changed, until the server drains."""
    since = 0.0
    while not ending.is_set():
        news = await read(since)
        yield format_event("history", news)
        # The last but one step is sent again, because it may have changed in its last moment.
        since = news["steps"][-1]["time"] - STEP_SECONDS
        await asyncio.sleep(LIVE_SECONDS)


def merge_history(bodies: Iterable[bytes]) -> dict[str, Any]:
    """Merge the histories of several processes. Of latencies the slowest is kept."""
    every = [json.loads(body) for body in bodies]
    steps: dict[int, dict[str, Any]] = {}
    for history in every:
        for step in history["steps"]:
            known = steps.get(step["time"])
            steps[step["time"]] = step if known is None else _merge_step(known, step)
    return {
        "began": min(history["began"] for history in every),
        "step": STEP_SECONDS,
        "sandboxes": sum(history["sandboxes"] for history in every),
        "queue": max(history["queue"] for history in every),  # all share one queue
        "steps": [steps[time] for time in sorted(steps)],
    }


def _merge_step(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    sums = {name: one[name] + other[name] for name in ("running", "waiting", "resident")}
    slowest = {name: max(filter(None, (one[name], other[name])), default=None) for name in ("p50", "p95")}
    outcomes = dict(Counter(one["outcomes"]) + Counter(other["outcomes"]))
    most = max(one["memory"], other["memory"])
    return {"time": one["time"], "outcomes": outcomes, "memory": most, **slowest, **sums}
