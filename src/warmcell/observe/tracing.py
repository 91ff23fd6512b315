"""Tracing: a span per run, child of the caller's, and metrics, by OpenTelemetry's API (`warmcell[otel]`).

The application's SDK exports them; without one they are dropped. A run starts and ends in the caller's thread or task,
so the span that is current there is the parent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warmcell.core.errors import BackendUnavailable
from warmcell.core.events import Event, listen
from warmcell.core.light import Closing

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

_SCOPE = "warmcell"


class Tracing(Closing):
    """Listens from construction until `close`. Uses the global providers unless given."""

    def __init__(self, tracers: TracerProvider | None = None, meters: MeterProvider | None = None) -> None:
        try:
            from opentelemetry import metrics, trace
        except ImportError:
            hint = "pip install 'warmcell[otel]'"
            raise BackendUnavailable("tracing needs the package 'opentelemetry-api'", hint=hint) from None
        self._trace = trace
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracers)
        meter = metrics.get_meter(_SCOPE, meter_provider=meters)
        self._seconds = meter.create_histogram("warmcell.run.duration", "s", "How long guests ran.")
        self._queued = meter.create_histogram("warmcell.run.queue.duration", "s", "How long runs waited.")
        self._active = meter.create_up_down_counter(
            "warmcell.run.active", "{run}", "Runs requested and not yet finished."
        )
        self._spans: dict[str, Span] = {}
        self._stop = listen(self._on_event)

    def _on_event(self, event: Event) -> None:
        if event.name == "run.asked":
            self._begin(event)
            return
        span = self._spans.get(event.subject)
        if span is None:
            return
        if event.name == "run.started":
            span.add_event("started")
        elif event.name == "denial":
            span.add_event(
                "denial", {f"warmcell.denial.{name}": str(event.fields[name]) for name in ("kind", "what", "rule")}
            )
        elif event.name == "run.ended":
            self._end(self._spans.pop(event.subject), event)

    def _begin(self, event: Event) -> None:
        names = _names(event)
        kind = self._trace.SpanKind.INTERNAL
        name = f"warmcell.run {event.fields['language']}"
        self._spans[event.subject] = self._tracer.start_span(name, kind=kind, attributes=names)
        self._active.add(1, names)

    def _end(self, span: Span, event: Event) -> None:
        fields, names = event.fields, _names(event)
        self._active.add(-1, names)
        outcome = {**names, "warmcell.outcome": fields["outcome"]}
        if fields["error"] is not None:
            outcome["error.type"] = fields["error"]
        span.set_attributes({**outcome, **_details(fields)})
        if fields["fault"] == "host":
            span.set_status(self._trace.StatusCode.ERROR, fields["error"])
        span.end()
        if fields["duration"] is not None:
            self._seconds.record(fields["duration"], outcome)
            self._queued.record(fields["queued"], names)

    def close(self) -> None:
        """Stop listening and end the spans of active runs."""
        self._stop()
        for span in self._spans.values():
            span.end()
        self._spans.clear()


def _names(event: Event) -> dict[str, Any]:
    return {"warmcell.backend": event.fields["backend"], "warmcell.language": event.fields["language"]}


def _details(fields: Any) -> dict[str, Any]:
    """Attributes, named by the semantic conventions where there is a name."""
    values = {
        "process.exit.code": fields["exit_code"],
        "warmcell.fault": fields["fault"],
        "warmcell.policy.hash": fields["policy"],
        "warmcell.queued": fields["queued"],
        "warmcell.cpu_time": fields.get("cpu_time"),
        "warmcell.peak_memory": fields.get("peak_memory_bytes"),
        "warmcell.signal": fields.get("signal"),
        "warmcell.isolation": (fields.get("enforced") or {}).get("isolation_class"),
    }
    return {name: value for name, value in values.items() if value is not None}
