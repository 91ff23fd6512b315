"""How throughput grows with the machine: runs per second and latency for 1 to 128 callers, each beside bare runs.

    python benchmarks/scaling.py [--seconds 3] [--only process,processes,judge,wasm,server,endings] [--results DIR]
                                 [--roles] [--callers 16,64]

Run it as an ordinary user on any number of processors. "Bare" is `python3 -c` in an empty virtual environment, by as
many callers as there are processors, before and after each part: the speed of a machine changes. For `judge` it is the
program that is judged, with its input. Prints tables with the efficiency per processor, and writes
benchmarks/results/scaling-N.json for N processors. With `--roles` each row is followed by processor time and context
switches per run and kind of process, and the idle share of the machine (see roles.py). Parts whose extra or module is
not installed are left out with a line that says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from load import Server, for_a_while, start_server
from roles import describe, take_sample

from warmcell import Case, ExecRequest, ProcessBackend, ProcessConfig, Sandbox, judge
from warmcell.core.errors import SandboxError
from warmcell.diagnosis.bench import HELLO, bare, empty_environment

RESULTS = Path(__file__).parent / "results"
PROCESSORS = len(os.sched_getaffinity(0))
CALLERS = (1, 2, 4, 8, 16, 64, 128)
PROGRAM = ExecRequest("python", HELLO, 60)
C_SUM = '#include <stdio.h>\nint main(void) { int a, b; scanf("%d %d", &a, &b); printf("%d\\n", a + b); return 0; }'
PYTHON_SUM = "print(sum(map(int, input().split())))"
PIPELINE = "echo hello | cat | wc -c"
#: Runs for each second of measuring where the number is given beforehand, about as many as there will be.
_EACH = 125 * PROCESSORS
#: Seconds that bare runs are measured beside each part.
_BESIDE = 1.5
Action = Callable[[], object]
#: Whether rows say where the time goes.
with_roles = False


def say(text: str) -> None:
    print(text, flush=True)


def measure(actions: list[Action], seconds: float) -> dict[str, float]:
    """Each action belongs to one caller, who repeats it. Runs per second, and the latency that a caller sees."""
    latencies: list[float] = []
    failures: list[BaseException] = []
    barrier = threading.Barrier(len(actions) + 1)
    end = 0.0

    def call(action: Action) -> None:
        own: list[float] = []
        barrier.wait()
        try:
            while time.monotonic() < end:
                began = time.perf_counter()
                action()
                own.append(time.perf_counter() - began)
        except BaseException as error:
            failures.append(error)
        latencies.extend(own)

    threads = [threading.Thread(target=call, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    before = take_sample([os.getpid()]) if with_roles else None
    end = time.monotonic() + seconds
    began = time.monotonic()
    barrier.wait()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    row = figures(latencies, time.monotonic() - began)
    if before is not None:
        row |= describe(before, take_sample([os.getpid()]), len(latencies))
    return row


def figures(latencies: list[float], seconds: float) -> dict[str, float]:
    ordered = sorted(latencies)
    p50, p99 = (1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99))
    return {"per_second": round(len(ordered) / seconds, 1), "p50_ms": round(p50, 2), "p99_ms": round(p99, 2)}


def show(name: str, rows: dict[str, dict[str, float]], base: float) -> dict[str, dict[str, float]]:
    """`base`: bare runs per second meanwhile, with as many callers as processors."""
    say(f"\n{name}\n{'':>42}  {'runs/s':>8}  {'x bare':>6}  {'of a core':>9}  {'p50 ms':>8}  {'p99 ms':>8}")
    for label, row in rows.items():
        row["x_bare"] = round(row["per_second"] / base, 3)
        row["per_processor"] = round(row["per_second"] / PROCESSORS, 1)
        columns = f"{row['per_second']:8.1f}  {row['x_bare']:6.2f}  {row['per_processor']:9.1f}"
        say(f"{label:>42}  {columns}  {row.get('p50_ms', 0):8.2f}  {row.get('p99_ms', 0):8.2f}")
        if "idle share" in row:
            kinds = [name for name in row if name.endswith((" ms", " switches", " share"))]
            say(" " * 30 + ", ".join(f"{name} {row[name]:g}" for name in kinds))
    return rows


def bare_rows(python: str, seconds: float) -> dict[str, dict[str, float]]:
    action = bare(python, "-c", HELLO)
    return {f"{callers} callers": measure([action] * callers, seconds) for callers in (1, 8, 16, 64)}


def bare_sum(python: str) -> None:
    done = subprocess.run([python, "-c", PYTHON_SUM], input=b"1 2", stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"3\n"


def bare_now(python: str, part: str) -> float:
    """Runs per second with as many callers as processors."""
    action: Action = bare(python, "-c", HELLO) if part != "judge" else lambda: bare_sum(python)
    return measure([action] * PROCESSORS, _BESIDE)["per_second"]


def process_rows(seconds: float, every: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """One program, one backend."""
    rows = {}
    for callers in every:
        with ProcessBackend(ProcessConfig(max_concurrency=max(callers, 2 * PROCESSORS))) as backend:
            action = lambda: backend.execute_blocking(PROGRAM)  # noqa: E731
            measure([action] * callers, min(1.0, seconds))  # so that managers and cells are there
            rows[f"{callers} callers"] = measure([action] * callers, seconds)
    return rows


def processes_rows(seconds: float) -> dict[str, dict[str, float]]:
    """`run_many` and its supervisors."""
    rows = {}
    for processes in sorted({1, 2, max(1, PROCESSORS // 4), max(1, PROCESSORS // 2)}):
        rows |= asyncio.run(many(processes, int(_EACH * seconds)))
    return rows


async def many(processes: int, count: int) -> dict[str, dict[str, float]]:
    """A first batch, which starts the processes, and a second one, which finds them."""
    rows = {}
    async with ProcessBackend() as backend:
        await backend.execute(PROGRAM)
        for batch in ("first", "next"):
            before = take_sample([os.getpid()]) if with_roles else None
            began = time.monotonic()
            async for outcome in backend.run_many([PROGRAM] * count, processes=processes):
                assert outcome.error is None, outcome.error
            row = {"per_second": round(count / (time.monotonic() - began), 1)}
            row |= {} if before is None else describe(before, take_sample([os.getpid()]), count)
            rows[f"run_many, processes={processes}, {batch}"] = row
    return rows


def judge_rows(seconds: float) -> dict[str, dict[str, float]]:
    rows = {}
    cases = [Case("1 2", "3")] * int(_EACH * seconds)
    python = ExecRequest("python", PYTHON_SUM, timeout=10)
    programs = {"Python": python, "C": ExecRequest("c", C_SUM, timeout=10)}
    for name, request in programs.items():
        for processes, batch in ((1, "first"), (None, "first"), (None, "next")):
            before = take_sample([os.getpid()]) if with_roles else None
            began = time.monotonic()
            try:
                verdicts = judge(request, cases, processes=processes)
            except SandboxError as error:
                say(f"judge, {name}: left out: {error}")
                continue
            assert {verdict.status for verdict in verdicts} == {"accepted"}
            label = f"judge, {name}, processes={processes or 'chosen'}, {batch}"
            rows[label] = {"per_second": round(len(cases) / (time.monotonic() - began), 1)}
            if before is not None:
                rows[label] |= describe(before, take_sample([os.getpid()]), len(cases))
    return rows


def wasm_rows(seconds: float) -> dict[str, dict[str, float]]:
    rows = {}
    for count in (1, 2, 4, 8, 16, 32):
        sandboxes = [Sandbox(backend="wasm") for _ in range(count)]
        try:
            for sandbox in sandboxes:
                assert sandbox.sh(PIPELINE).stdout.strip() == "6"
            actions: list[Action] = [lambda s=sandbox: s.sh(PIPELINE) for sandbox in sandboxes]  # type: ignore[misc]
            rows[f"{count} sandboxes"] = measure(actions, seconds)
        finally:
            for sandbox in sandboxes:
                sandbox.destroy()
    rows["4 programs, 8 sandboxes each"] = in_programs(4, "wasm", seconds)
    return rows


def in_programs(programs: int, part: str, seconds: float) -> dict[str, float]:
    """The same part in several programs at once, summed."""
    command = [sys.executable, __file__, "--program", part, "--seconds", str(seconds)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(programs)]
    totals = [float(process.communicate()[0]) for process in running]
    return {"per_second": round(sum(totals), 1)}


def one_program(part: str, seconds: float) -> float:
    assert part == "wasm", part
    sandboxes = [Sandbox(backend="wasm") for _ in range(8)]
    try:
        actions: list[Action] = [lambda s=sandbox: s.sh(PIPELINE) for sandbox in sandboxes]  # type: ignore[misc]
        measure(actions, 1.0)
        return measure(actions, seconds)["per_second"]
    finally:
        for sandbox in sandboxes:
            sandbox.destroy()


def server_rows(seconds: float) -> dict[str, dict[str, float]]:
    """Up and down again, and the mean: the speed of the machine changes meanwhile, by more than a few workers do."""
    numbers = [workers for workers in (0, 2, 4, 8, 16) if workers <= PROCESSORS]
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for workers in (*numbers, *reversed(numbers)):
            options = ["--workers", str(workers)] if workers else []
            with start_server(directory, *options) as server:
                row = asyncio.run(load_server(server, seconds))
            found.setdefault(f"{workers or 'no'} workers", []).append(row)
    return {name: {key: round((up[key] + down[key]) / 2, 3) for key in up} for name, (up, down) in found.items()}


async def load_server(server: Server, seconds: float) -> dict[str, float]:
    """64 clients, each with a connection of its own."""
    body = json.dumps({"code": HELLO, "language": "python", "run_timeout": 30}).encode()
    connections = [server.connect() for _ in range(64)]
    latencies: list[float] = []

    async def step(number: int) -> bool:
        began = time.perf_counter()
        status, answer = await connections[number].ask("POST", "/run_code", body)
        latencies.append(time.perf_counter() - began)
        return status == 200 and b"Success" in answer

    await for_a_while(64, 1.0, step)
    latencies.clear()
    before = take_sample([server.process.pid]) if with_roles else None
    load = time.process_time()
    done, failed, took = await for_a_while(64, seconds, step)
    row = {**figures(latencies, took), "failed": failed, "requests": done}
    if before is not None:
        row["load ms"] = round(1000 * (time.process_time() - load) / done, 3)
        row |= describe(before, take_sample([server.process.pid]), done)
    for connection in connections:
        connection.close()
    return row


def ending_rows() -> dict[str, dict[str, float]]:
    """What a run costs where much is preloaded, in milliseconds, with pauses."""
    rows = {}
    tensor = "import torch; print(torch.ones(9).sum())"
    for module, code in (("pandas", "print(1)"), ("torch", "print(1)"), ("torch", tensor)):
        config = ProcessConfig(python_path=sys.executable, preload=(module,))
        latencies = []
        try:
            with ProcessBackend(config) as backend:
                for _ in range(40):
                    began = time.perf_counter()
                    backend.execute_blocking(ExecRequest("python", code, 60))
                    latencies.append(time.perf_counter() - began)
                    time.sleep(0.05)
        except SandboxError as error:
            say(f"{module} preloaded: left out: {str(error)[:100]}")
            continue
        rows[f"{module}: {code[:24]}"] = figures(latencies[5:], sum(latencies[5:]))
    return rows


def parts(
    names: list[str], seconds: float, callers: tuple[int, ...]
) -> Iterator[tuple[str, Callable[[], dict[str, dict[str, float]]]]]:
    every: dict[str, Callable[[], dict[str, dict[str, float]]]] = {
        "process": lambda: process_rows(seconds, callers),
        "processes": lambda: processes_rows(seconds),
        "judge": lambda: judge_rows(seconds),
        "wasm": lambda: wasm_rows(seconds),
        "server": lambda: server_rows(seconds),
        "endings": ending_rows,
    }
    for name in names or list(every):
        yield name, every[name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each row is measured (default 3)")
    parser.add_argument("--only", default="", help="parts, separated by commas")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--roles", action="store_true", help="processor time per run and kind of process")
    parser.add_argument("--callers", default="", help="numbers of callers for the part `process`")
    parser.add_argument("--program", help=argparse.SUPPRESS)
    options = parser.parse_args()
    global with_roles  # of this program alone
    with_roles = options.roles
    if options.program:
        print(one_program(options.program, options.seconds))
        return 0
    host = {"processors": PROCESSORS, "kernel": platform.release(), "python": platform.python_version()}
    report: dict[str, Any] = {**host}
    callers = tuple(map(int, options.callers.split(","))) if options.callers else CALLERS
    with tempfile.TemporaryDirectory() as directory:
        python = empty_environment(directory)
        report["bare"] = bare_rows(python, options.seconds)
        show("bare python3 -c", report["bare"], max(row["per_second"] for row in report["bare"].values()))
        for name, part in parts([each for each in options.only.split(",") if each], options.seconds, callers):
            before = bare_now(python, name)
            try:
                rows = part()
            except (ImportError, SandboxError, TypeError) as error:
                say(f"\n{name}: left out: {type(error).__name__}: {error}")
                continue
            base = (before + bare_now(python, name)) / 2
            report[name] = show(f"{name} (bare meanwhile: {base:.0f})", rows, base) | {"bare": {"per_second": base}}
    if not options.only:
        options.results.mkdir(exist_ok=True)
        (options.results / f"scaling-{PROCESSORS}.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
