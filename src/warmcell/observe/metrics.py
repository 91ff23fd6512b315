"""Metrics for Prometheus: what `prometheus-client` needs to answer `/metrics` (`warmcell[prometheus]`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warmcell.core.errors import BackendUnavailable
from warmcell.core.events import Event, listen
from warmcell.languages.registry import known_language

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_BYTES = tuple(float(1 << power) for power in range(22, 34, 2))


class Metrics:
    """Counts from the moment it is made until `close`, in a registry of its own unless one is given.

    Labels are words of short lists, never what a guest or a caller chose, so that their number stays small.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            import prometheus_client
        except ImportError:
            hint = "pip install 'warmcell[prometheus]'"
            raise BackendUnavailable("metrics need the package 'prometheus-client'", hint=hint) from None
        self._client = prometheus_client
        self.registry = registry if registry is not None else prometheus_client.CollectorRegistry()
        self._make(prometheus_client)
        self._under_way: dict[str, str] = {}
        self._counts: dict[str, Callable[[Event], object]] = {
            "run.asked": self._asked,
            "run.started": self._started,
            "run.ended": self._ended,
            "cell": lambda event: self._cells.labels("yes" if event.fields["was_ready"] else "no").inc(),
            "denial": lambda event: self._denials.labels(event.fields["kind"]).inc(),
            "network": lambda event: self._network.labels(event.fields["via"], event.fields["decision"]).inc(),
            "network.closed": self._closed,
            "sandbox.made": lambda event: self._sandboxes.inc(),
            "sandbox.gone": lambda event: self._sandboxes.dec(),
            "live.made": lambda event: self._live_cages.inc(),
            "live.gone": lambda event: self._live_cages.dec(),
            "process.started": lambda event: self._processes.inc(),
            "process.ended": lambda event: self._processes.dec(),
            "session.made": lambda event: self._sessions.inc(),
            "session.gone": lambda event: self._sessions.dec(),
            "session.cell": lambda event: self._session_cells.labels(event.fields["outcome"]).inc(),
        }
        self._stop = listen(self._hear)

    def _make(self, client: Any) -> None:
        kept = {"registry": self.registry}
        by_run = ["backend", "language", "outcome", "fault"]
        self._runs = client.Counter("warmcell_runs", "Runs that ended.", by_run, **kept)
        self._seconds = client.Histogram(
            "warmcell_run_seconds", "How long guests ran.", ["backend", "language"], buckets=_SECONDS, **kept
        )
        self._queued = client.Histogram(
            "warmcell_queue_seconds", "How long runs waited for their turn.", ["backend"], buckets=_SECONDS, **kept
        )
        self._cpu = client.Counter("warmcell_run_cpu_seconds", "Processor time of guests.", ["backend"], **kept)
        self._memory = client.Histogram(
            "warmcell_run_peak_memory_bytes", "The most memory that a run held.", ["backend"], buckets=_BYTES, **kept
        )
        self._waiting = client.Gauge("warmcell_runs_waiting", "Runs that wait for their turn.", **kept)
        self._running = client.Gauge("warmcell_runs_running", "Runs that are under way.", **kept)
        self._denials = client.Counter("warmcell_denials", "What guests were refused.", ["kind"], **kept)
        self._network = client.Counter("warmcell_network_decisions", "Ways out.", ["via", "decision"], **kept)
        self._carried = client.Counter(
            "warmcell_proxy_bytes", "Bytes between guests and their proxy.", ["direction"], **kept
        )
        self._cells = client.Counter("warmcell_cells", "Cages that runs were given.", ["was_ready"], **kept)
        self._sandboxes = client.Gauge("warmcell_sandboxes", "Sandboxes that exist.", **kept)
        self._live_cages = client.Gauge("warmcell_live_cages", "Live cages that exist.", **kept)
        self._processes = client.Gauge("warmcell_live_processes", "Processes that run in live cages.", **kept)
        self._sessions = client.Gauge("warmcell_sessions", "Sessions that exist.", **kept)
        self._session_cells = client.Counter("warmcell_session_cells", "Cells that ended.", ["outcome"], **kept)

    def text(self) -> bytes:
        """What `/metrics` answers."""
        data: bytes = self._client.generate_latest(self.registry)
        return data

    def _hear(self, event: Event) -> None:
        if (count := self._counts.get(event.name)) is not None:
            count(event)

    def _asked(self, event: Event) -> None:
        self._waiting.inc()
        self._under_way[event.subject] = "waiting"

    def _started(self, event: Event) -> None:
        if self._under_way.get(event.subject) == "waiting":
            self._under_way[event.subject] = "running"
            self._waiting.dec()
            self._running.inc()

    def _closed(self, event: Event) -> None:
        for direction, count in event.fields.items():
            self._carried.labels(direction).inc(count)

    def _ended(self, event: Event) -> None:
        fields = event.fields
        state = self._under_way.pop(event.subject, None)
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

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _label(language: str) -> str:
    """Whoever asks may ask for any name."""
    return language if known_language(language) is not None else "other"
