"""Runs on a simulated cluster against the local backend: throughput, overhead, and judging while nodes are killed.

    python benchmarks/cluster.py [--nodes 1 2] [--runs 300] [--cases 10000] [--kill-every 20]

The nodes are sets of Ray's processes on this host (`ray.cluster_utils.Cluster`): honest for placement, failure and
back-pressure, not for a network, and they share the processors. What carrying a run costs is measured with nodes that
run nothing, against a local backend that runs nothing. Writes results/cluster.md.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from idle_backend import IdleBackend

from warmcell import Case, ExecRequest, ProcessBackend, RayBackend, Verdict, judge
from warmcell.backends.ray.cluster import Cluster as Nodes
from warmcell.backends.ray.ray_nodes import RayNodes

REQUEST = ExecRequest("python", "print(6 * 7)", 20)
RESULTS = Path(__file__).parent / "results" / "cluster.md"


@contextmanager
def cluster(nodes: int) -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # for the nodes, which import `idle_backend`
    place = os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="wr", dir="/tmp")
    store = {"object_store_memory": 100 << 20}
    # The nice value of the local backend, beside which the nodes are measured.
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": {"worker_niceness": 0}, **store}
    made = Cluster(initialize_head=True, head_node_args=head)
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


def time_carrying(backend: Any, runs: int) -> float:
    """Per run of a batch that runs nothing; the best of three, because other work only adds."""
    per_second(backend, 500)
    return 1000 / max(per_second(backend, 10 * runs) for _ in range(3))


def idle_ray() -> RayBackend:
    backend = RayBackend()
    backend._cluster = Nodes(RayNodes(None), IdleBackend, 30)
    return backend


def measure(name: str, backend: Any, idle: Any, runs: int) -> str:
    with idle:
        cost = time_carrying(idle, runs)
    per_second(backend, 100)
    return f"| {name} | {alone_ms(backend, min(runs, 100)):.1f} | {per_second(backend, runs):.0f} | {cost:.2f} |"


def judge_with_losses(made: Any, backend: RayBackend, count: int, kill_every: float) -> str:
    """Every `kill_every` seconds a node is killed, and another joins."""
    seen: list[int] = []
    killed = 0
    program = ExecRequest("python", "n = int(input()); print(n * 2 if n % 7 else -1)", 10)
    cases = [Case(str(n), str(n * 2)) for n in range(count)]

    def judge_all() -> list[Verdict]:
        return judge(program, cases, backend=backend, on_verdict=lambda index, _: seen.append(index), concurrency=8)

    began = time.perf_counter()
    with ThreadPoolExecutor(1) as thread:  # Ray starts nodes in the main thread only
        judging = thread.submit(judge_all)
        while not wait([judging], kill_every).done:
            made.remove_node(next(iter(made.worker_nodes)), False)
            killed += 1
            made.add_node(num_cpus=1, object_store_memory=100 << 20)
        verdicts = judging.result()
    seconds = time.perf_counter() - began
    wrong = sum(verdict.ok != bool(n % 7) for n, verdict in enumerate(verdicts))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return (
        f"{count} cases, a node killed every {kill_every:g} s ({killed} of them): {len(verdicts)} verdicts,"
        f" {wrong} wrong, {count - len(set(seen))} lost, {len(seen) - len(set(seen))} doubled, {seconds:.0f} s,"
        f" {memory} MiB in the driver at most."
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--kill-every", type=float, default=20)
    options = parser.parse_args()
    lines = [
        f"`python benchmarks/cluster.py --runs {options.runs} --cases {options.cases}`, {os.cpu_count()} processors.",
        "",
    ]
    titles = "backend", "one run alone, ms (median)", "runs per second", "carrying a run of a batch, ms"
    lines += [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    with ProcessBackend() as local:
        lines.append(measure("local", local, IdleBackend(), options.runs))
    for nodes in options.nodes:
        with cluster(nodes) as made, RayBackend() as backend:
            lines.append(measure(f"ray, {nodes} nodes", backend, idle_ray(), options.runs))
            if nodes == max(options.nodes):
                lines += ["", judge_with_losses(made, backend, options.cases, options.kill_every)]
    text = "# Runs on a simulated cluster\n\n" + "\n".join(lines) + "\n"
    RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
