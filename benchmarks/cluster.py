"""Runs on a simulated cluster against the local backend: throughput, overhead, and judging while a node is killed.

    python benchmarks/cluster.py [--nodes 1 2] [--runs 300] [--cases 2000]

The nodes are sets of Ray's processes on this host (`ray.cluster_utils.Cluster`): honest for placement, failure and
back-pressure, not for a network, and they share the processors. Writes results/cluster.md.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from warmcell import Case, ExecRequest, ProcessBackend, RayBackend, judge

REQUEST = ExecRequest("python", "print(6 * 7)", 20)
RESULTS = Path(__file__).parent / "results" / "cluster.md"


@contextmanager
def cluster(nodes: int) -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    place = os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="wr", dir="/tmp")
    store = {"object_store_memory": 100 << 20}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store})
    try:
        for _ in range(nodes):
            made.add_node(num_cpus=1, **store)
        ray.init(address=made.address, log_to_driver=False, logging_level="WARNING")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        shutil.rmtree(place, ignore_errors=True)


def alone_ms(backend: Any, runs: int) -> float:
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        backend.execute_blocking(REQUEST)
        times.append(time.perf_counter() - began)
    return median(times) * 1000


def per_second(backend: Any, runs: int) -> float:
    began = time.perf_counter()
    assert all(outcome.result is not None for outcome in backend.run_many_blocking([REQUEST] * runs))
    return runs / (time.perf_counter() - began)


def measure(name: str, backend: Any, runs: int) -> str:
    per_second(backend, 20)
    return f"| {name} | {alone_ms(backend, min(runs, 100)):.1f} | {per_second(backend, runs):.0f} |"


def judge_with_a_loss(made: Any, backend: RayBackend, count: int) -> str:
    """Kills a node after a third of the cases."""
    seen: list[int] = []

    def count_verdict(index: int, _: object) -> None:
        seen.append(index)
        if len(seen) == count // 3:
            threading.Thread(target=made.remove_node, args=(next(iter(made.worker_nodes)), False)).start()

    program = ExecRequest("python", "n = int(input()); print(n * 2 if n % 7 else -1)", 10)
    cases = [Case(str(n), str(n * 2)) for n in range(count)]
    began = time.perf_counter()
    verdicts = judge(program, cases, backend=backend, on_verdict=count_verdict, concurrency=8)
    seconds = time.perf_counter() - began
    wrong = sum(verdict.ok != bool(n % 7) for n, verdict in enumerate(verdicts))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return (
        f"{count} cases, a node killed after {count // 3}: {len(verdicts)} verdicts, {wrong} wrong,"
        f" {count - len(set(seen))} lost, {len(seen) - len(set(seen))} doubled, {seconds:.0f} s,"
        f" {memory} MiB in the driver at most."
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--cases", type=int, default=2000)
    options = parser.parse_args()
    lines = [
        f"`python benchmarks/cluster.py --runs {options.runs} --cases {options.cases}`, {os.cpu_count()} processors.",
        "",
    ]
    lines += ["| backend | one run alone, ms (median) | runs per second |", "|---|---|---|"]
    with ProcessBackend() as local:
        lines.append(measure("local", local, options.runs))
    for nodes in options.nodes:
        with cluster(nodes) as made, RayBackend() as backend:
            lines.append(measure(f"ray, {nodes} nodes", backend, options.runs))
            if nodes == max(options.nodes):
                lines += ["", judge_with_a_loss(made, backend, options.cases)]
    text = "# Runs on a simulated cluster\n\n" + "\n".join(lines) + "\n"
    RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
