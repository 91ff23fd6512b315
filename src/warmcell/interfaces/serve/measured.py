"""`/metrics`: what Prometheus reads. Counted from the start of the server, nothing in it belongs to any tenant."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.doors import door
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.observe.metrics import Metrics

_FORM = "text/plain; version=0.0.4; charset=utf-8"


class Measured:
    """Listens until `close`."""

    def __init__(self) -> None:
        self._metrics = Metrics()

    async def __call__(self, request: Request, tenant: Tenant) -> Response:
        """Runs by language, outcome and fault, waiting, time and memory, for Prometheus."""
        return Response(self._metrics.text(), headers={"Content-Type": _FORM, "Cache-Control": "no-store"})

    def routes(self) -> list[Any]:
        return [door("GET", "/metrics", self, "metrics", answers=("text",))]

    def close(self) -> None:
        self._metrics.close()
