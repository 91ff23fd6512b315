"""For the operator: `/v1/activity`, the present runs and sandboxes without their content; ending them; the audit; and
`/v1/history`, counts over time for charts, with nothing of a tenant.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.event_streams import EventStream, format_event, wants_events
from warmcell.interfaces.serve.quotas import TenantQuota
from warmcell.interfaces.serve.responses import HttpError, json_response
from warmcell.interfaces.serve.routing import NO_CONTENT, route
from warmcell.interfaces.serve.service import Service, get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import number_in_query, query, whole_in_query
from warmcell.lifetime.threads import in_thread
from warmcell.observe.activity import Activity
from warmcell.observe.audit import read_audit
from warmcell.observe.history import STEP_SECONDS, History

MAX_RECORDS = 1000
#: How many bytes at the end of a file are searched for its last records.
_TAIL_BYTES = 2 << 20
HISTORY = "/v1/history"
#: Interval of the live stream.
LIVE_SECONDS = 1.0
#: Open streams per tenant; the same as for WebSockets.
MAX_STREAMS = 64
#: Reads the history since a Unix time.
ReadHistory = Callable[[float], Awaitable[dict[str, Any]]]


class ActivityRoute:
    """Collects events until `close`."""

    def __init__(self) -> None:
        self._activity = Activity()
        self.close = self._activity.close

    async def __call__(self, request: Request, tenant: Tenant) -> Response:
        """Waiting and running runs, and sandboxes, of all tenants."""
        runs = [dataclasses.asdict(run) for run in self._activity.runs()]
        sandboxes = [
            {"id": entry.id, "tenant": entry.tenant_id, "backend": "process", "seconds": entry.age}
            for entry in get_service(request).sandboxes.all()
        ]
        return json_response({"runs": runs, "sandboxes": sandboxes})

    async def end_run(self, request: Request, tenant: Tenant) -> None:
        """Ends a run of any tenant. Its client gets an error that names the operator as the cause."""
        wanted = request.path_params["run"]
        run = next((run for run in self._activity.runs() if run.id == wanted), None)
        if run is None or not get_service(request).open_requests.end(run.tenant or "", run.request or ""):
            raise HttpError(404, "run not found; it may have ended")

    async def end_sandbox(self, request: Request, tenant: Tenant) -> None:
        """Ends a sandbox of any tenant."""
        sandboxes = get_service(request).sandboxes
        entry = sandboxes.find_any(request.path_params["sandbox"])
        if entry is None:
            raise HttpError(404, "sandbox not found; it may have ended")
        await sandboxes.remove(entry)

    def routes(self) -> list[Any]:
        limit = query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_RECORDS})
        return [
            route("GET", "/v1/activity", self, "metrics", answers=("Activity",)),
            route("GET", "/v1/audit", audit, "operate", answers=("Audit",), parameters=[limit]),
            route("DELETE", "/v1/activity/runs/{run}", self.end_run, "operate", **NO_CONTENT),
            route("DELETE", "/v1/activity/sandboxes/{sandbox}", self.end_sandbox, "operate", **NO_CONTENT),
        ]


def merge_activity(bodies: Iterable[bytes]) -> dict[str, list[Any]]:
    """Concatenate the activity of several processes."""
    found: dict[str, list[Any]] = {"runs": [], "sandboxes": []}
    for activity in map(json.loads, bodies):
        for name, rows in found.items():
            rows += activity[name]
    return found


async def audit(request: Request, tenant: Tenant) -> Response:
    """The last records of the audit file, the newest first."""
    path, limit = get_service(request).settings.audit, whole_in_query(request, "limit", 200, MAX_RECORDS)
    if path is None:
        raise HttpError(404, "this server writes no audit; start it with --audit FILE")
    return json_response({"records": await in_thread(lambda: read_last(path, limit))})


def read_last(path: str, limit: int) -> list[dict[str, Any]]:
    """The last records, the newest first, including those of the file before a rotation."""
    found: deque[dict[str, Any]] = deque(maxlen=limit)
    for part in (f"{path}.1", path):
        with suppress(FileNotFoundError), open(part, "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES)
            file.seek(start)
            if start:
                file.readline()  # probably half a line
            found.extend(read_audit(file))
    return [*reversed(found)]


class HistoryRoute:
    """Collects events until `close`."""

    def __init__(self) -> None:
        self._history = History()
        self.close = self._history.close
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
        return [route("GET", HISTORY, self, "metrics", answers=("History", "text/event-stream"))]


def open_stream(streams: TenantQuota, owner: str, read: ReadHistory, ending: asyncio.Event) -> Response:
    """Open a stream of the history. Raises `HttpError` 429 if the owner has too many."""
    if not streams.take(owner, MAX_STREAMS):
        message = f"this token already has {MAX_STREAMS} open streams of history"
        raise HttpError(429, message, headers={"Retry-After": "5"})

    async def release() -> None:
        streams.release(owner)

    return EventStream(_stream_history(read, ending), release)


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
