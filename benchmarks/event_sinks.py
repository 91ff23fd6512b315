"""The cost of event sinks for a warm run: none, metrics, tracing, an audit, all of them; interleaved.

    python benchmarks/event_sinks.py [--quick]

Each is compared with runs without a sink in the same minute. Two columns: the whole run, and the time of the events
alone, which is the figure above the noise. Writes benchmarks/results/observing.json (not
with --quick). Needs the extras `prometheus` and `otel`, and the package `opentelemetry-sdk`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

from warmcell import ExecRequest, ExecResult, FakeBackend, ProcessBackend
from warmcell.observe.audit import AuditLog
from warmcell.observe.metrics import Metrics
from warmcell.observe.tracing import Tracing

RESULTS = Path(__file__).parent / "results" / "observing.json"
REQUEST = ExecRequest("python", "print(1)", 30)
PAUSE = 0.02

Mode = Callable[[], AbstractContextManager[object]]


def tracing() -> Tracing:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    return Tracing(tracers)


def audit() -> AuditLog:
    return AuditLog(os.path.join(tempfile.gettempdir(), f"observing-{os.getpid()}.jsonl"))


@contextmanager
def everything() -> Iterator[None]:
    with ExitStack() as stack:
        for mode in (Metrics, tracing, audit):
            stack.enter_context(mode())
        yield


MODES: dict[str, Mode] = {
    "none": nullcontext,
    "metrics": Metrics,
    "tracing": tracing,
    "audit": audit,
    "all of them": everything,
}


def run_ms(backend: ProcessBackend, mode: Mode, count: int) -> list[float]:
    taken = []
    with mode():
        for _ in range(count):
            time.sleep(PAUSE)
            started = time.perf_counter()
            backend.execute_blocking(REQUEST)
            taken.append(1000 * (time.perf_counter() - started))
    return taken


def events_us(mode: Mode, count: int) -> float:
    """The time of the events of a run that does nothing."""
    backend = FakeBackend(lambda request: ExecResult())
    with mode():
        started = time.perf_counter()
        for _ in range(count):
            backend.execute_blocking(REQUEST)
        return 1e6 * (time.perf_counter() - started) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    is_quick = parser.parse_args().quick
    rounds, count = (3, 20) if is_quick else (20, 50)
    runs: dict[str, list[float]] = {name: [] for name in MODES}
    event_times: dict[str, list[float]] = {name: [] for name in MODES}
    with ProcessBackend() as backend:
        run_ms(backend, nullcontext, 20)
        for _ in range(rounds):
            for name, mode in MODES.items():
                runs[name] += run_ms(backend, mode, count)
                event_times[name].append(events_us(mode, 20 * count))
    bare, silent = statistics.median(runs["none"]), min(event_times["none"])
    print(f"{'sinks':12}  {'run, p50':>9}  {'ratio':>6}  {'events of a run':>16}")
    rows = []
    for name in MODES:
        p50, extra = statistics.median(runs[name]), min(event_times[name]) - silent
        rows.append(
            {"name": name, "p50_ms": round(p50, 3), "ratio": round(p50 / bare, 3), "events_us": round(extra, 1)}
        )
        print(f"{name:12}  {p50:6.2f} ms  {p50 / bare:5.2f}x  {extra:13.1f} us")
    if not is_quick:
        RESULTS.write_text(json.dumps({"user": "root" if os.getuid() == 0 else "user", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
