"""Metrics for Prometheus (`warmcell[prometheus]`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import BackendUnavailable
from warmcell.core.events import Event, listen
from warmcell.core.light import Closing
from warmcell.languages.registry import lookup_language

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import CollectorRegistry

_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
METRICS_HEADERS = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8", "Cache-Control": "no-store"}
_BYTES = tuple(float(1 << power) for power in range(22, 34, 2))


class Metrics(Closing):
    """Counts from construction until `close`, in its own registry unless one is given.

    Label values come from fixed lists, never from guests or callers, so that their number stays small. `by_tenant` adds
    counters with the tenant of a server's token as a label.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, by_tenant: bool = False) -> None:
        try:
            import prometheus_client
        except ImportError:
            hint = "pip install 'warmcell[prometheus]'"
            raise BackendUnavailable("metrics need the package 'prometheus-client'", hint=hint) from None
        self._client = prometheus_client
        self.registry = registry if registry is not None else prometheus_client.CollectorRegistry()
        self._make(prometheus_client)
        self._tenants = TenantMetrics(prometheus_client, self.registry) if by_tenant else None
        #: Looking up labels takes longer than counting.
        self._by_request: dict[tuple[str, str, int], tuple[Any, Any]] = {}
        self._states: dict[str, str] = {}
        self._counts: dict[str, Callable[[Event], object]] = {
            "run.asked": self._on_asked,
            "run.started": self._on_started,
            "run.ended": self._on_ended,
            "cell": lambda event: self._cells.labels("yes" if event.fields["was_ready"] else "no").inc(),
            "denial": lambda event: self._denials.labels(event.fields["kind"]).inc(),
            "network": lambda event: self._network.labels(event.fields["via"], event.fields["decision"]).inc(),
            "network.closed": self._on_closed,
            "sandbox.made": lambda event: self._sandboxes.inc(),
            "sandbox.gone": lambda event: self._sandboxes.dec(),
            "live.made": lambda event: self._live_cages.inc(),
            "live.gone": lambda event: self._live_cages.dec(),
            "process.started": lambda event: self._processes.inc(),
            "process.ended": lambda event: self._processes.dec(),
            "session.made": lambda event: self._sessions.inc(),
            "session.gone": lambda event: self._sessions.dec(),
            "request": self._count_request,
            "queue.entered": lambda event: self._waiting.inc(),
            "queue.left": lambda event: self._waiting.dec(),
            "session.cell": lambda event: self._session_cells.labels(event.fields["outcome"]).inc(),
        }
        self._stop = listen(self._on_event)

    def _make(self, client: Any) -> None:
        counter, gauge, histogram = (
            partial(kind, registry=self.registry) for kind in (client.Counter, client.Gauge, client.Histogram)
        )
        seconds = partial(histogram, buckets=_SECONDS)
        self._runs = counter("warmcell_runs", "Runs that ended.", ["backend", "language", "outcome", "fault"])
        self._seconds = seconds("warmcell_run_seconds", "How long guests ran.", ["backend", "language"])
        self._queued = seconds("warmcell_queue_seconds", "How long runs waited in the queue.", ["backend"])
        self._cpu = counter("warmcell_run_cpu_seconds", "Processor time of guests.", ["backend"])
        about = "Peak memory of runs."
        self._memory = histogram("warmcell_run_peak_memory_bytes", about, ["backend"], buckets=_BYTES)
        self._waiting = gauge("warmcell_runs_waiting", "Runs waiting in the queue.")
        self._running = gauge("warmcell_runs_running", "Runs in progress.")
        self._denials = counter("warmcell_denials", "Operations refused to guests.", ["kind"])
        self._network = counter("warmcell_network_decisions", "Ways out.", ["via", "decision"])
        self._carried = counter("warmcell_proxy_bytes", "Bytes between guests and their proxy.", ["direction"])
        self._cells = counter("warmcell_cells", "Cages assigned to runs.", ["was_ready"])
        self._sandboxes = gauge("warmcell_sandboxes", "Sandboxes that exist.")
        self._live_cages = gauge("warmcell_live_cages", "Live cages.")
        self._processes = gauge("warmcell_live_processes", "Processes running in live cages.")
        self._sessions = gauge("warmcell_sessions", "Sessions that exist.")
        self._session_cells = counter("warmcell_session_cells", "Cells that ended.", ["outcome"])
        self._requests = counter("warmcell_http_requests", "HTTP responses.", ["method", "route", "status"])
        self._request_seconds = seconds("warmcell_http_request_seconds", "Duration of HTTP requests.", ["route"])

    def text(self) -> bytes:
        """The response body of `/metrics`."""
        data: bytes = self._client.generate_latest(self.registry)
        return data

    def _on_event(self, event: Event) -> None:
        if (count := self._counts.get(event.name)) is not None:
            count(event)
        if self._tenants is not None and event.fields.get("tenant"):
            self._tenants.count(event)

    def _on_asked(self, event: Event) -> None:
        self._waiting.inc()
        self._states[event.subject] = "waiting"

    def _on_started(self, event: Event) -> None:
        if self._states.get(event.subject) == "waiting":
            self._states[event.subject] = "running"
            self._waiting.dec()
            self._running.inc()

    def _on_closed(self, event: Event) -> None:
        for direction in ("sent", "received"):
            self._carried.labels(direction).inc(event.fields[direction])

    def _count_request(self, event: Event) -> None:
        fields = event.fields
        key = fields["method"], fields["route"], fields["status"]
        if (known := self._by_request.get(key)) is None:
            count = self._requests.labels(key[0], key[1], str(key[2]))
            known = self._by_request[key] = count, self._request_seconds.labels(key[1])
        known[0].inc()
        known[1].observe(fields["duration"])

    def _on_ended(self, event: Event) -> None:
        fields = event.fields
        state = self._states.pop(event.subject, None)
        if state is not None:
            (self._running if state == "running" else self._waiting).dec()
        backend, language = fields["backend"], _label(fields["language"])
        self._runs.labels(backend, language, fields["outcome"], fields["fault"] or "none").inc()
        if fields["duration"] is not None:
            self._seconds.labels(backend, language).observe(fields["duration"])
            self._queued.labels(backend).observe(fields["queued"])
            self._cpu.labels(backend).inc(fields["cpu_time"])
            self._memory.labels(backend).observe(fields["peak_memory_bytes"])

    def close(self) -> None:
        self._stop()


class TenantMetrics:
    """Counters by tenant: as many label values as a server has tokens."""

    def __init__(self, client: Any, registry: CollectorRegistry) -> None:
        counter = partial(client.Counter, registry=registry)
        self._requests = counter("warmcell_tenant_http_requests", "HTTP responses by tenant.", ["tenant", "status"])
        self._runs = counter("warmcell_tenant_runs", "Runs by tenant.", ["tenant", "outcome"])
        about = "Processor time of runs, processes and cells, by tenant."
        self._cpu = counter("warmcell_tenant_cpu_seconds", about, ["tenant"])
        about = "Runs waiting in the queue, by tenant."
        self._waiting = client.Gauge("warmcell_tenant_runs_waiting", about, ["tenant"], registry=registry)

    def count(self, event: Event) -> None:
        tenant, fields = event.fields["tenant"], event.fields
        if event.name == "request":
            self._requests.labels(tenant, str(fields["status"])).inc()
        elif event.name == "queue.entered":
            self._waiting.labels(tenant).inc()
        elif event.name == "queue.left":
            self._waiting.labels(tenant).dec()
        elif event.name == "run.ended":
            self._runs.labels(tenant, fields["outcome"]).inc()
        if event.name in ("run.ended", "session.cell", "process.ended") and not fields.get("run"):
            self._cpu.labels(tenant).inc(fields.get("cpu_time") or 0.0)


def _label(language: str) -> str:
    """Requests may name any language; unknown ones are "other"."""
    return language if lookup_language(language) is not None else "other"


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
