"""Runs on a simulated cluster against local backends: throughput, overhead, and judging while nodes are killed.

    python benchmarks/cluster.py [--nodes 1 2 4 8] [--runs 600] [--cases 10000] [--kill-every 20] [--kill-nodes 4]

The nodes are sets of Ray's processes on this host (`ray.cluster_utils.Cluster`), each with one processor for Ray:
honest for placement, failure and back-pressure, not for a network, and they share the processors. So the throughput of
N nodes is compared with that of N local backends that run at the same time, and rounds of both alternate. What carrying
a run costs is measured with nodes that run nothing, against a local backend that runs nothing. Writes
results/cluster.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import mean, median
from threading import Event
from typing import Any, NamedTuple

from idle_backend import IdleBackend

from warmcell import Case, ExecRequest, ProcessBackend, RayBackend, Verdict, judge
from warmcell.backends.ray.cluster import Cluster as Nodes
from warmcell.backends.ray.placement import batch_places
from warmcell.backends.ray.ray_nodes import RayNodes

REQUEST = ExecRequest("python", "print(6 * 7)", 20)
#: A case that takes a while without the processor, so that judging lasts several kills.
CASE = ExecRequest("python", "import time; time.sleep(0.05); n = int(input()); print(n * 2 if n % 7 else -1)", 20)
RESULTS = Path(__file__).parent / "results" / "cluster.md"
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}
ROUNDS = 3
START_SECONDS = 180


@contextmanager
def cluster(nodes: int) -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # for the nodes, which import `idle_backend`
    place = os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="wr", dir="/tmp")
    # The nice value of the local backend, beside which the nodes are measured.
    head = {**NODE, "num_cpus": 0, "include_dashboard": False, "_system_config": {"worker_niceness": 0}}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes):
            made.add_node(**NODE)
        ray.init(address=made.address, log_to_driver=False, logging_level="WARNING")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        shutil.rmtree(place, ignore_errors=True)


# ---- local backends ----


def serve_local(connection: Any) -> None:
    """A backend in a process of its own: runs as many as it is asked to, as many at a time as a node would."""
    with ProcessBackend() as backend:
        while (runs := connection.recv()) is not None:
            outcomes = backend.run_many_blocking([REQUEST] * runs, batch_places(1, 2), processes=1)
            connection.send(all(outcome.result is not None for outcome in outcomes))


class LocalBackends:
    """Local backends that run at the same time, one for each node of a cluster."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(count)]
        self._connections = [here for here, _ in pairs]
        self._processes = [context.Process(target=serve_local, args=(there,), daemon=True) for _, there in pairs]
        for process in self._processes:
            process.start()

    def run(self, runs: int) -> None:
        for connection in self._connections:
            connection.send(max(1, runs // len(self._connections)))
        assert all(connection.recv() for connection in self._connections)

    def close(self) -> None:
        for connection, process in zip(self._connections, self._processes, strict=True):
            connection.send(None)
            process.join()


# ---- measures ----


def busy_ms() -> float:
    """The processor time of everything on this host."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
    return (user + nice + system + irq + softirq) * 1000 / os.sysconf("SC_CLK_TCK")


class Throughput(NamedTuple):
    per_second: float
    processor_ms: float


def measure_throughput(run: Callable[[int], object], runs: int) -> Throughput:
    began, busy = time.perf_counter(), busy_ms()
    run(runs)
    return Throughput(runs / (time.perf_counter() - began), (busy_ms() - busy) / runs)


def run_batch(backend: Any, runs: int) -> None:
    assert all(outcome.result is not None for outcome in backend.run_many_blocking([REQUEST] * runs))


def compare_throughput(nodes: int, backend: RayBackend, runs: int) -> tuple[Throughput, Throughput]:
    """Of local backends and of the cluster: the median of rounds that alternate."""
    local = LocalBackends(nodes)
    sides: list[Callable[[int], object]] = [local.run, lambda count: run_batch(backend, count)]
    for run in sides:
        run(max(100, 25 * nodes))
    rounds = [[measure_throughput(run, runs) for run in sides] for _ in range(ROUNDS)]
    local.close()
    of_local, of_ray = zip(*rounds, strict=True)
    return middle(of_local), middle(of_ray)


def middle(rounds: Sequence[Throughput]) -> Throughput:
    return Throughput(median(one.per_second for one in rounds), median(one.processor_ms for one in rounds))


def compare_alone(local: ProcessBackend, backend: RayBackend, runs: int) -> tuple[float, float]:
    """Milliseconds of one run, local and on the cluster: medians of short series that alternate."""
    times: dict[Any, list[float]] = {local: [], backend: []}
    for is_warm in (False, *[True] * max(1, runs // 20)):
        for one, taken in times.items():
            for _ in range(20):
                began = time.perf_counter()
                one.execute_blocking(REQUEST)
                if is_warm:
                    taken.append((time.perf_counter() - began) * 1000)
    return median(times[local]), median(times[backend])


def time_carrying(backend: Any, runs: int) -> float:
    """Milliseconds for a run of a batch that runs nothing; the best of three, because other work only adds."""
    run_batch(backend, 500)
    return 1000 / max(measure_throughput(lambda count: run_batch(backend, count), runs).per_second for _ in range(3))


def idle_ray() -> RayBackend:
    backend = RayBackend()
    backend._cluster = Nodes(RayNodes(None), IdleBackend, 30)
    return backend


def wait_for_nodes(backend: RayBackend, count: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while (reasons := [node.reason for node in backend.nodes()]) != [""] * count:
        if time.monotonic() > deadline:
            raise SystemExit(f"{count} nodes did not start within {START_SECONDS} s: {reasons}")
        time.sleep(0.1)


class Row(NamedTuple):
    nodes: int
    alone: tuple[float, float]
    local: Throughput
    ray: Throughput
    carrying: tuple[float, float]

    @property
    def overhead_alone(self) -> float:
        return self.alone[1] - self.alone[0]

    @property
    def overhead_carrying(self) -> float:
        return self.carrying[1] - self.carrying[0]

    @property
    def share(self) -> float:
        return self.ray.per_second / self.local.per_second

    def render(self) -> str:
        cells = [
            f"{self.nodes}",
            f"{self.alone[0]:.2f} / {self.alone[1]:.2f}",
            f"{self.overhead_alone:.2f}",
            f"{self.local.per_second:.0f} / {self.ray.per_second:.0f}",
            f"{self.share:.2f}",
            f"{self.local.processor_ms:.1f} / {self.ray.processor_ms:.1f}",
            f"{self.carrying[0]:.2f} / {self.carrying[1]:.2f}",
            f"{self.overhead_carrying:.2f}",
        ]
        return f"| {' | '.join(cells)} |"


TITLES = (
    "nodes",
    "one run alone, ms: local / ray",
    "more",
    "runs per second: as many local backends / ray",
    "ratio",
    "processor time of a run, ms: local / ray",
    "carrying a run of a batch, ms: local / ray",
    "more",
)


def measure(nodes: int, backend: RayBackend, runs: int) -> Row:
    wait_for_nodes(backend, nodes)
    with IdleBackend() as idle, idle_ray() as idle_nodes:
        wait_for_nodes(idle_nodes, nodes)
        carrying = time_carrying(idle, 5 * runs), time_carrying(idle_nodes, 5 * runs)
    with ProcessBackend() as local:
        alone = compare_alone(local, backend, min(runs, 200))
    return Row(nodes, alone, *compare_throughput(nodes, backend, runs), carrying)


# ---- losing nodes ----


class Killer:
    """Kills the oldest node of a cluster every so many seconds. Replacements start meanwhile: `replace_killed`."""

    def __init__(self, made: Any, every: float) -> None:
        self._made, self._every = made, every
        self._nodes = deque(made.worker_nodes)
        self._killed: SimpleQueue[None] = SimpleQueue()
        self.times: list[float] = []
        self.skipped = 0

    def kill_until(self, is_over: Event) -> None:
        due = time.perf_counter() + self._every
        while not is_over.wait(max(0, due - time.perf_counter())):
            due += self._every
            if len(self._nodes) < 2:
                self.skipped += 1
                continue
            self._made.remove_node(self._nodes.popleft(), False)
            self.times.append(time.perf_counter())
            self._killed.put(None)

    def replace_killed(self, is_over: Event) -> None:
        """In the main thread, the only one in which Ray starts nodes."""
        while not is_over.is_set():
            try:
                self._killed.get(timeout=0.2)
            except Empty:
                continue
            self._nodes.append(self._made.add_node(**NODE))

    def describe(self) -> str:
        intervals = [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]
        apart = f", {mean(intervals):.1f} s apart on average" if intervals else ""
        skipped = f", {self.skipped} kills left out because no other node was there" if self.skipped else ""
        return f"{len(self.times)} nodes killed{apart}{skipped}"


def judge_with_losses(made: Any, backend: RayBackend, count: int, kill_every: float) -> str:
    seen: list[int] = []
    is_over = Event()
    killer = Killer(made, kill_every)

    def judge_all() -> list[Verdict]:
        try:
            cases = [Case(str(n), str(n * 2)) for n in range(count)]
            return judge(CASE, cases, backend=backend, on_verdict=lambda index, _: seen.append(index))
        finally:
            is_over.set()

    began = time.perf_counter()
    with ThreadPoolExecutor(2) as threads:
        judging = threads.submit(judge_all)
        killing = threads.submit(killer.kill_until, is_over)
        killer.replace_killed(is_over)
        verdicts = judging.result()
        seconds = time.perf_counter() - began
        killing.result()
    wrong = sum(verdict.ok != bool(n % 7) for n, verdict in enumerate(verdicts))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return (
        f"{count} cases, {killer.describe()}: {len(verdicts)} verdicts, {wrong} wrong, {count - len(set(seen))} lost,"
        f" {len(seen) - len(set(seen))} doubled, {seconds:.0f} s, {memory} MiB in the driver at most."
    )


# ---- the page ----


def render(rows: list[Row], losses: list[str], command: str, load_before: float) -> str:
    alone, carrying = min(row.overhead_alone for row in rows), min(row.overhead_carrying for row in rows)
    shares = [row.share for row in rows]
    lines = [
        "# Runs on a simulated cluster",
        "",
        f"`{command}`, {os.cpu_count()} processors, load average {load_before:.1f} before.",
        "",
        f"| {' | '.join(TITLES)} |",
        "|---" * len(TITLES) + "|",
        *(row.render() for row in rows),
        "",
        f"A run alone takes {alone:.2f} ms more (at most 3 wanted), a run of a batch {carrying:.2f} ms (at most 0.3),"
        f" each with the number of nodes that is best. Ray has {min(shares):.2f} to {max(shares):.2f} of the throughput"
        " of local backends (at least 0.85 wanted). The processor time is that of the whole host.",
    ]
    for text in losses:
        lines += ["", text]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--runs", type=int, default=600)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--kill-every", type=float, default=20)
    parser.add_argument("--kill-nodes", type=int, default=4, help="the size of the cluster whose nodes are killed")
    options = parser.parse_args()
    command = f"python benchmarks/cluster.py --nodes {' '.join(map(str, options.nodes))} --runs {options.runs}"
    rows: list[Row] = []
    losses: list[str] = []
    load_before = os.getloadavg()[0]
    for nodes in options.nodes:
        with cluster(nodes), RayBackend() as backend:
            rows.append(measure(nodes, backend, options.runs))
            print(rows[-1].render(), flush=True)
    if options.cases:
        with cluster(options.kill_nodes) as made, RayBackend() as backend:
            wait_for_nodes(backend, options.kill_nodes)
            losses.append(
                f"{options.kill_nodes} nodes: {judge_with_losses(made, backend, options.cases, options.kill_every)}"
            )
    text = render(rows, losses, f"{command} --cases {options.cases}", load_before)
    RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
