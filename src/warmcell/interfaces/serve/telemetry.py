"""OpenTelemetry for the server: spans and metrics by OTLP, configured by the usual environment variables."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack

from warmcell.core.errors import BackendUnavailable

_log = logging.getLogger("warmcell.serve")
_VARIABLES = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)


def start_telemetry() -> ExitStack:
    """Export until the stack is closed, if one of the endpoint variables is set."""
    stack = ExitStack()
    if not any(os.environ.get(name) for name in _VARIABLES) or os.environ.get("OTEL_SDK_DISABLED") == "true":
        return stack
    try:
        _start(stack)
    except (ImportError, BackendUnavailable):
        packages = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        _log.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, but nothing is exported: pip install %s", packages)
    return stack


def _start(stack: ExitStack) -> None:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from warmcell.observe.tracing import Tracing

    os.environ.setdefault("OTEL_SERVICE_NAME", "warmcell")
    tracers, meters = TracerProvider(), MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    stack.callback(tracers.shutdown)
    stack.callback(meters.shutdown)
    stack.callback(Tracing(tracers, meters).close)
