"""`/v1/activity`: the present runs and sandboxes, without their content, for the operator."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.responses import json_response
from warmcell.interfaces.serve.routing import route
from warmcell.interfaces.serve.service import get_service
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.interfaces.serve.v1.operator_routes import OperatorRoutes
from warmcell.observe.activity import Activity


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

    def routes(self) -> list[Any]:
        listing = route("GET", "/v1/activity", self, "metrics", answers=("Activity",))
        return [listing, *OperatorRoutes(self._activity).routes()]

    def close(self) -> None:
        self._activity.close()


def merge_activity(bodies: Iterable[bytes]) -> dict[str, list[Any]]:
    """Concatenate the activity of several processes."""
    found: dict[str, list[Any]] = {"runs": [], "sandboxes": []}
    for activity in map(json.loads, bodies):
        for name, rows in found.items():
            rows += activity[name]
    return found
