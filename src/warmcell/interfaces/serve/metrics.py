"""`/metrics`: counts since the start of the server, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from warmcell.interfaces.serve.routing import route
from warmcell.interfaces.serve.tokens import Tenant
from warmcell.observe.metrics import Metrics

METRICS_HEADERS = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8", "Cache-Control": "no-store"}


class MetricsRoute:
    """Collects events until `close`."""

    def __init__(self, *, by_tenant: bool = False) -> None:
        self._metrics = Metrics(by_tenant=by_tenant)

    async def __call__(self, request: Request, tenant: Tenant) -> Response:
        """Runs by language, outcome and fault, waiting, time and memory, for Prometheus."""
        return Response(self._metrics.text(), headers=METRICS_HEADERS)

    def routes(self) -> list[Any]:
        return [route("GET", "/metrics", self, "metrics", answers=("text",))]

    def close(self) -> None:
        self._metrics.close()


def merge_metrics(texts: Iterable[str]) -> str:
    """Add up the samples of several processes. Of creation times the earliest is kept."""
    found: dict[str, float | None] = {}
    for line in (line for text in texts for line in text.splitlines() if line):
        name, _, value = line.rpartition(" ")
        if line.startswith("#"):
            found.setdefault(line)
        elif (before := found.get(name)) is None:
            found[name] = float(value)
        elif name.partition("{")[0].endswith("_created"):
            found[name] = min(before, float(value))
        else:
            found[name] = before + float(value)
    return "".join(f"{name}\n" if value is None else f"{name} {value:.17g}\n" for name, value in found.items())
