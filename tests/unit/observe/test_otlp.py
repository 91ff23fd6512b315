"""Spans and metrics over the wire, to a receiver on loopback that speaks OpenTelemetry's own protocol."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from warmcell import ExecRequest, ExecResult, FakeBackend
from warmcell.observe.tracing import Tracing


class Receiver(BaseHTTPRequestHandler):
    got: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        is_packed = self.headers.get("Content-Encoding") == "gzip"
        self.got.append((self.path, gzip.decompress(body) if is_packed else body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    got: list[tuple[str, bytes]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Receiver,), {"got": got}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    server.server_close()


def test_a_run_arrives_as_a_span_and_as_a_measurement(receiver: tuple[str, list[tuple[str, bytes]]]) -> None:
    url, got = receiver
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(f"{url}/v1/metrics"), 3_600_000)])
    with Tracing(tracers, meters):
        FakeBackend(lambda request: ExecResult(exit_code=3)).execute_blocking(ExecRequest("python", "secret()", 5))
    tracers.shutdown()
    meters.shutdown()
    sent = dict(got)
    spans = ExportTraceServiceRequest.FromString(sent["/v1/traces"])
    (span,) = spans.resource_spans[0].scope_spans[0].spans
    assert span.name == "warmcell.run python"
    assert {item.key: item.value.int_value for item in span.attributes}["process.exit.code"] == 3
    measured = ExportMetricsServiceRequest.FromString(sent["/v1/metrics"])
    names = {metric.name for metric in measured.resource_metrics[0].scope_metrics[0].metrics}
    assert "warmcell.run.duration" in names
    assert not any(b"secret()" in body for body in sent.values())
