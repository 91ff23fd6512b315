"""OpenTelemetry: a run is a child of the caller's span, in threads and in tasks."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from warmcell import ExecRequest, ExecResult, FakeBackend
from warmcell.core.errors import BackendUnavailable, ExecutionFailed, SandboxError
from warmcell.core.types import Denial
from warmcell.observe.tracing import Tracing

REQUEST = ExecRequest("python", "print(1)", 5)


class Kept:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])

    def runs(self) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith("warmcell.run")]

    def metric_names(self) -> set[str]:
        data = self.reader.get_metrics_data()
        assert data is not None
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return {metric.name for scope in scopes for metric in scope.metrics}


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_a_run_is_a_child_of_the_caller_in_every_thread(kept: Kept) -> None:
    backend = FakeBackend(lambda request: ExecResult(exit_code=3, denials=[Denial("filesystem", "/x", "r", "h")]))
    tracer = kept.tracers.get_tracer("test")
    parents: list[int] = []

    def call() -> None:
        with tracer.start_as_current_span("caller") as span:
            parents.append(span.get_span_context().span_id)
            backend.execute_blocking(REQUEST)

    with Tracing(kept.tracers, kept.meters):
        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    runs = kept.runs()
    assert sorted(span.parent.span_id for span in runs if span.parent) == sorted(parents) and len(runs) == 3
    span = runs[0]
    assert span.name == "warmcell.run python" and span.attributes is not None
    assert span.attributes["process.exit.code"] == 3 and span.attributes["warmcell.outcome"] == "failed"
    assert [event.name for event in span.events] == ["started", "denial"]
    assert {"warmcell.run.duration", "warmcell.run.queue.duration", "warmcell.run.active"} <= kept.metric_names()


async def test_and_in_every_task(kept: Kept) -> None:
    backend = FakeBackend(lambda request: ExecResult(), latency=0.01)
    tracer = kept.tracers.get_tracer("test")

    async def call() -> int:
        with tracer.start_as_current_span("caller") as span:
            await backend.execute(REQUEST)
            return span.get_span_context().span_id

    with Tracing(kept.tracers, kept.meters):
        parents = await asyncio.gather(*[call() for _ in range(5)])
    assert sorted(span.parent.span_id for span in kept.runs() if span.parent) == sorted(parents)


def test_only_our_own_fault_is_an_error(kept: Kept) -> None:
    answers = iter([ExecResult(exit_code=1), ExecutionFailed("broken")])
    backend = FakeBackend(lambda request: next(answers))
    with Tracing(kept.tracers, kept.meters):
        backend.execute_blocking(REQUEST)
        with pytest.raises(SandboxError):
            backend.execute_blocking(REQUEST)
    guest, host = kept.runs()
    assert guest.status.status_code is StatusCode.UNSET and host.status.status_code is StatusCode.ERROR
    assert host.attributes is not None and host.attributes["error.type"] == "sandbox.execution_failed"


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(BackendUnavailable) as refused:
        Tracing()
    assert refused.value.hint == "pip install 'warmcell[otel]'"
