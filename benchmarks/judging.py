"""The cost of judging: many short programs, compiled programs with many cases, many languages; beside `subprocess`.

    python benchmarks/judging.py [--quick] [--concurrency N] [--results DIR]

Run it as an ordinary user and as root. Ours and bare take turns, with the same concurrency, in the same process. Prints
tables, writes benchmarks/results/judging-user.json or judging-root.json (not with --quick), and ends with status 1
when a target is missed. Targets: Python 1.3 times the bare runs per second, a compiled program at most 4 ms more than
bare, no host failure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warmcell import ExecRequest, ExecResult, ProcessBackend, ProcessConfig, Program
from warmcell.backends.many import run_many
from warmcell.languages.python import find_interpreter
from warmcell.languages.registry import why_missing

RESULTS = Path(__file__).parent / "results"
PYTHON = find_interpreter(ProcessConfig()).path
PYTHON_TARGET, COMPILED_TARGET_MS = 1.3, 4.0
ROUNDS = 5

#: Our program, and the file that a bare compiler made.
Built = tuple[Program, str]


@dataclass
class Series:
    """Samples of one kind, over all its turns."""

    name: str
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    host_errors: int = 0
    wrong: int = 0

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    def quantile(self, share: float) -> float:
        """A quantile in milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def row(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "runs": len(self.latencies),
            "per_second": round(self.per_second, 1),
            "p50_ms": round(self.quantile(0.5), 2),
            "p99_ms": round(self.quantile(0.99), 2),
            "host_errors": self.host_errors,
            "wrong": self.wrong,
        }


@dataclass(frozen=True)
class Task:
    """One run both ways: `program` and its input for us, a command line for `subprocess`."""

    run: Callable[[], Any]
    argv: list[str]
    stdin: str
    expected: str


def take_turns(name: str, tasks: list[Task], concurrency: int) -> tuple[Series, Series]:
    """Alternate ours and bare, so that noise on the host affects both alike."""
    ours, bare = Series(f"{name}, warmcell"), Series(f"{name}, bare")
    size = -(-len(tasks) // ROUNDS)
    for first in range(0, len(tasks), size):
        some = tasks[first : first + size]
        asyncio.run(run_ours(ours, some, concurrency))
        run_bare(bare, some, concurrency)
    return ours, bare


async def run_ours(series: Series, tasks: list[Task], concurrency: int) -> None:
    by_code = {str(index): task for index, task in enumerate(tasks)}

    async def execute(request: ExecRequest) -> ExecResult:
        began = time.perf_counter()
        result = await by_code[str(request.code)].run()
        series.latencies.append(time.perf_counter() - began)
        return result  # type: ignore[no-any-return]

    requests = (ExecRequest("command", code, 60) for code in by_code)
    began = time.perf_counter()
    async for outcome in run_many(execute, requests, concurrency):
        if outcome.error is not None:
            series.host_errors += outcome.error.fault == "host"
            series.wrong += outcome.error.fault != "host"
        elif outcome.result is not None and outcome.result.stdout != tasks[outcome.index].expected:
            series.wrong += 1
    series.seconds += time.perf_counter() - began


def run_bare(series: Series, tasks: list[Task], concurrency: int) -> None:
    def one(task: Task) -> None:
        began = time.perf_counter()
        ended = subprocess.run(task.argv, input=task.stdin.encode(), capture_output=True, check=False)
        series.latencies.append(time.perf_counter() - began)
        series.wrong += ended.stdout.decode() != task.expected

    began = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as threads:
        list(threads.map(one, tasks))
    series.seconds += time.perf_counter() - began


def python_tasks(backend: ProcessBackend, count: int) -> list[Task]:
    def task(number: int) -> Task:
        code = f"n = int(input())\nprint(sum(i * i for i in range(n)) + {number})"
        expected = f"{sum(i * i for i in range(100)) + number}\n"
        request = ExecRequest("python", code, 30, stdin="100")
        return Task(lambda: backend.execute(request), [PYTHON, "-c", code], "100", expected)

    return [task(number) for number in range(count)]


CPP = """#include <algorithm>
#include <iostream>
#include <vector>
int main() {{
    long n; std::cin >> n;
    std::vector<long> all;
    for (long i = 0; i < n; i++) all.push_back(i * {number} % 1009);
    std::sort(all.begin(), all.end());
    std::cout << all.back() << std::endl;
}}
"""


def build_programs(
    backend: ProcessBackend, count: int, directory: str
) -> tuple[list[tuple[Program, str]], list[float]]:
    """Build each program with Warmcell and with a bare compiler with the same flags; return both times."""
    built, seconds = [], [0.0, 0.0]
    compiler = shutil.which("g++") or "g++"
    for number in range(1, count + 1):
        source, binary = os.path.join(directory, f"{number}.cpp"), os.path.join(directory, str(number))
        text = CPP.format(number=number) + f"// {os.urandom(8).hex()}\n"
        Path(source).write_text(text, encoding="utf-8")
        began = time.perf_counter()
        program = backend.build_blocking(ExecRequest("cpp", text, 30))
        middle = time.perf_counter()
        subprocess.run([compiler, "-O2", "-std=c++20", "-o", binary, source, "-pthread"], check=True)
        seconds[0] += middle - began
        seconds[1] += time.perf_counter() - middle
        built.append((program, binary))
    return built, [total / count for total in seconds]


def make_compiled_tasks(built: list[Built], cases: int) -> list[Task]:
    def task(number: int, program: Program, binary: str, n: int) -> Task:
        expected = f"{max(i * number % 1009 for i in range(n))}\n"
        return Task(lambda: program.run(str(n)), [binary], str(n), expected)

    return [
        task(number, program, binary, 10 + case)
        for number, (program, binary) in enumerate(built, 1)
        for case in range(cases)
    ]


#: Prints its input once more; and how the bare system starts it.
MIXED = {
    "python": ("print(input())", [PYTHON, "{file}.py"]),
    "javascript": ("process.stdout.write(require('fs').readFileSync(0, 'utf8'))", ["node", "{file}.js"]),
    "command": ("read -r line; echo $line", ["bash", "{file}.sh"]),
    "ruby": ("puts gets", ["ruby", "{file}.rb"]),
    "perl": ("print scalar <STDIN>;", ["perl", "{file}.pl"]),
    "lua": ("print(io.read())", ["lua5.4", "{file}.lua"]),
    "php": ("<?php echo fgets(STDIN);", ["php", "{file}.php"]),
    "c": ("#include <stdio.h>\nint main(void) { char b[9]; fputs(fgets(b, 9, stdin), stdout); }", ["{file}.exe"]),
}


def make_mixed_tasks(backend: ProcessBackend, count: int, directory: str) -> list[Task]:
    kinds = [_make_mixed_task(backend, name, directory) for name in MIXED if why_missing(name, ProcessConfig()) is None]
    return [kinds[number % len(kinds)] for number in range(count)]


def _make_mixed_task(backend: ProcessBackend, name: str, directory: str) -> Task:
    code, command = MIXED[name]
    file = os.path.join(directory, f"mixed-{name}")
    argv = [word.format(file=file) for word in command]
    if name == "c":
        Path(f"{file}.c").write_text(code, encoding="utf-8")
        subprocess.run(["gcc", "-O2", "-o", argv[0], f"{file}.c"], check=True)
    else:
        Path(argv[-1]).write_text(code, encoding="utf-8")
    program = backend.build_blocking(ExecRequest(name, code, 60))
    return Task(lambda: program.run("x\n"), argv, "x\n", "x\n")


def memory_mb(field: str = "VmRSS") -> float:
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith(field))
    return int(line.split()[1]) / 1024


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'':34} {'runs':>6} {'runs/s':>8} {'p50 ms':>8} {'p99 ms':>8} {'host':>5} {'wrong':>6}")
    for row in rows:
        print(
            f"{row['name']:34} {row['runs']:6} {row['per_second']:8.1f} {row['p50_ms']:8.2f} {row['p99_ms']:8.2f} "
            f"{row['host_errors']:5} {row['wrong']:6}"
        )


def measure(quick: bool, concurrency: int) -> Iterator[tuple[str, Any]]:
    programs, count, cases, mixed = (4, 60, 5, 40) if quick else (200, 1000, 20, 400)
    with tempfile.TemporaryDirectory() as directory, ProcessBackend() as backend:
        yield "memory before, MB", memory_mb()
        take_turns("warm up", python_tasks(backend, 10), concurrency)
        yield "series", take_turns(f"python x {concurrency}", python_tasks(backend, count), concurrency)
        built, seconds = build_programs(backend, programs, directory)
        yield "a C++ build, seconds (warmcell, bare)", [round(each, 3) for each in seconds]
        tasks = make_compiled_tasks(built, cases)
        yield "series", take_turns("C++ one by one", tasks[:: 1 if quick else 8], 1)
        yield "series", take_turns(f"C++ x {concurrency}", tasks, concurrency)
        yield "series", take_turns(f"mixed x {concurrency}", make_mixed_tasks(backend, mixed, directory), concurrency)
        yield "memory at its peak, MB", memory_mb("VmHWM")


def check_goals(rows: dict[str, dict[str, Any]], concurrency: int) -> list[tuple[str, bool]]:
    """The goals, and whether each was met."""
    python, bare_python = (rows[f"python x {concurrency}, {who}"] for who in ("warmcell", "bare"))
    compiled, bare_compiled = (rows[f"C++ one by one, {who}"] for who in ("warmcell", "bare"))
    ratio = python["per_second"] / bare_python["per_second"]
    more = compiled["p50_ms"] - bare_compiled["p50_ms"]
    failures = sum(row["host_errors"] + row["wrong"] for row in rows.values())
    return [
        (f"python: {ratio:.2f} times the bare runs per second (at least {PYTHON_TARGET})", ratio >= PYTHON_TARGET),
        (
            f"a compiled program: {more:+.2f} ms beside bare (at most {COMPILED_TARGET_MS:g})",
            more <= COMPILED_TARGET_MS,
        ),
        (f"failures of the host, and wrong answers: {failures}", failures == 0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute in place of ten; nothing is written")
    parser.add_argument("--concurrency", type=int, default=2 * len(os.sched_getaffinity(0)))
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the figures are written")
    arguments = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    facts: dict[str, Any] = {"user": "root" if os.geteuid() == 0 else "user", "kernel": platform.release()}
    for name, value in measure(arguments.quick, arguments.concurrency):
        if name == "series":
            rows |= {series.name: series.row() for series in value}
            show([series.row() for series in value])
            sys.stdout.flush()
        else:
            facts[name] = value
            print(f"{name}: {value}", flush=True)
    verdicts = check_goals(rows, arguments.concurrency)
    for text, holds in verdicts:
        print(f"{'ok    ' if holds else 'MISSED'} {text}")
    if not arguments.quick:
        arguments.results.mkdir(exist_ok=True)
        report = {"facts": facts, "series": list(rows.values()), "targets": dict(verdicts)}
        (arguments.results / f"judging-{facts['user']}.json").write_text(
            json.dumps(report, indent=1) + "\n", encoding="utf-8"
        )
    return 0 if all(holds for _, holds in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
