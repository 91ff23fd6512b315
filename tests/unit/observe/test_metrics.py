"""Prometheus: counted by outcome and fault, with labels of short lists."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from warmcell import ExecRequest, ExecResult, FakeBackend, ProcessBackend
from warmcell.core import events
from warmcell.core.errors import BackendUnavailable, ExecutionFailed, SandboxError
from warmcell.core.types import Denial, Usage
from warmcell.observe.metrics import Metrics

REQUEST = ExecRequest("python", "print(1)", 5)


def test_runs_are_counted() -> None:
    usage = Usage(cpu_time=0.25, peak_memory_bytes=1 << 23)
    denial = Denial("network", "x:1", "default", "allow_domain")
    answers = iter(
        [ExecResult(duration=0.02, usage=usage), ExecResult(exit_code=1, denials=[denial]), ExecutionFailed("")]
    )
    backend = FakeBackend(lambda request: next(answers))
    with Metrics() as metrics:
        for _ in range(2):
            backend.execute_blocking(REQUEST)
        with pytest.raises(SandboxError):
            backend.execute_blocking(REQUEST)
    text = metrics.text().decode()
    for outcome, fault in (("ok", "none"), ("failed", "none"), ("error", "host")):
        assert (
            f'warmcell_runs_total{{backend="fake",fault="{fault}",language="python",outcome="{outcome}"}} 1.0' in text
        )
    assert 'warmcell_run_seconds_bucket{backend="fake",language="python",le="0.025"} 2.0' in text
    assert 'warmcell_run_cpu_seconds_total{backend="fake"} 0.25' in text
    assert 'warmcell_denials_total{kind="network"} 1.0' in text
    assert "warmcell_runs_running 0.0" in text and "warmcell_runs_waiting 0.0" in text
    assert not events.listeners


@pytest.mark.needs("linux")
@pytest.mark.needs("user namespaces")
def test_cages_that_stood_ready_are_counted() -> None:
    with Metrics() as metrics, ProcessBackend() as backend:
        backend.execute_blocking(REQUEST)
        while 'warmcell_cells_total{was_ready="yes"}' not in metrics.text().decode():
            backend.execute_blocking(REQUEST)
    assert 'warmcell_cells_total{was_ready="no"}' in metrics.text().decode()


def test_names_that_callers_choose_make_no_labels() -> None:
    with Metrics() as metrics, ProcessBackend() as backend:
        for name in ("x1", "x2"):
            with pytest.raises(SandboxError):
                backend.execute_blocking(ExecRequest(name, "1", 5))
    text = metrics.text().decode()
    assert 'language="other",outcome="error"} 2.0' in text and "x1" not in text


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(BackendUnavailable, match="prometheus") as refused:
        Metrics()
    assert refused.value.hint == "pip install 'warmcell[prometheus]'" and not events.listeners


def test_the_dashboard_asks_for_what_there_is() -> None:
    dashboard = (Path(__file__).resolve().parents[3] / "docs/dashboards/grafana.json").read_text()
    asked = set(re.findall(r"warmcell_\w+", dashboard))
    with Metrics() as metrics:
        there = {sample for family in metrics.registry.collect() for sample in _samples(family.type, family.name)}
    assert len(asked) >= 9 and asked <= there


def _samples(kind: str, name: str) -> set[str]:
    return {"counter": {f"{name}_total"}, "histogram": {f"{name}_bucket"}}.get(kind, {name})
