"""`/v1/activity`: the runs and sandboxes of this moment, without anything of what they hold. For whoever runs it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.exchange import answer
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.observe.activity import Activity


class UnderWay:
    """Listens until `close`."""

    def __init__(self) -> None:
        self._activity = Activity()

    async def __call__(self, request: Request, tenant: Tenant) -> Response:
        """Which runs wait or run, and which sandboxes there are; of all tenants."""
        runs, sandboxes = self._activity.runs(), self._activity.sandboxes()
        return answer(
            {"runs": [*map(dataclasses.asdict, runs)], "sandboxes": [*map(dataclasses.asdict, sandboxes)]},  # type: ignore[arg-type]
        )

    def routes(self) -> list[Any]:
        return [door("GET", "/v1/activity", self, "metrics", answers=("Activity",))]

    def close(self) -> None:
        self._activity.close()


def joined(bodies: Iterable[bytes]) -> dict[str, list[Any]]:
    """What several processes say, as one."""
    found: dict[str, list[Any]] = {"runs": [], "sandboxes": []}
    for told in map(json.loads, bodies):
        for name, rows in found.items():
            rows += told[name]
    return found
