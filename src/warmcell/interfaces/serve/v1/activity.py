"""For the operator: `/v1/activity`, the present runs and sandboxes without their content; ending them; the audit."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.responses import HttpError, json_response
from warmcell.interfaces.serve.routing import NO_CONTENT, route
from warmcell.interfaces.serve.service import get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.models import query, whole_in_query
from warmcell.lifetime.threads import in_thread
from warmcell.observe.activity import Activity
from warmcell.observe.audit import read_audit

MAX_RECORDS = 1000
#: How far back from the end of a file its last records are searched.
_TAIL_BYTES = 2 << 20


class ActivityRoute:
    """Collects events until `close`."""

    def __init__(self) -> None:
        self._activity = Activity()

    async def __call__(self, request: Request, tenant: Tenant) -> Response:
        """Waiting and running runs, and sandboxes, of all tenants."""
        runs = [dataclasses.asdict(run) for run in self._activity.runs()]
        sandboxes = [
            {"id": entry.id, "tenant": entry.tenant_id, "backend": "process", "seconds": entry.age}
            for entry in get_service(request).sandboxes.all()
        ]
        return json_response({"runs": runs, "sandboxes": sandboxes})

    async def end_run(self, request: Request, tenant: Tenant) -> Response:
        """Ends a run of any tenant. Its client gets an error that names the operator as the cause."""
        wanted = request.path_params["run"]
        run = next((run for run in self._activity.runs() if run.id == wanted), None)
        if run is None or not get_service(request).open_requests.end(run.tenant or "", run.request or ""):
            raise HttpError(404, "run not found; it may have ended")
        return Response(status_code=204)

    async def end_sandbox(self, request: Request, tenant: Tenant) -> Response:
        """Ends a sandbox of any tenant."""
        sandboxes = get_service(request).sandboxes
        entry = sandboxes.find_any(request.path_params["sandbox"])
        if entry is None:
            raise HttpError(404, "sandbox not found; it may have ended")
        await sandboxes.remove(entry)
        return Response(status_code=204)

    def routes(self) -> list[Any]:
        limit = query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_RECORDS})
        return [
            route("GET", "/v1/activity", self, "metrics", answers=("Activity",)),
            route("GET", "/v1/audit", audit, "operate", answers=("Audit",), parameters=[limit]),
            route("DELETE", "/v1/activity/runs/{run}", self.end_run, "operate", **NO_CONTENT),
            route("DELETE", "/v1/activity/sandboxes/{sandbox}", self.end_sandbox, "operate", **NO_CONTENT),
        ]

    def close(self) -> None:
        self._activity.close()


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
    """The last records, the newest first; of a file that was just rotated also those before."""
    found: deque[dict[str, Any]] = deque(maxlen=limit)
    for part in (f"{path}.1", path):
        with suppress(FileNotFoundError), open(part, "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES)
            file.seek(start)
            if start:
                file.readline()  # probably half a line
            found.extend(read_audit(file))
    return [*reversed(found)]
