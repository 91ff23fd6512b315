"""What an isolated process run costs, against bare runs and peers, all interleaved in one process.

    python benchmarks/process.py [--rounds 200] [--quick]

Prints tables and writes benchmarks/results/process.json and process.svg. Peers that are not installed
(benchmarks/requirements.txt) are left out with a line that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chart import bar_chart

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import SandboxError
from warmcell.core.types import ExecRequest, Language
from warmcell.diagnosis.bench import (
    Case,
    Figure,
    bare,
    figures,
    measure,
    ours,
    standard_cases,
    table,
    throughput,
    until_ready,
)
from warmcell.languages.config import ProcessConfig
from warmcell.languages.python import find_interpreter

RESULTS = Path(__file__).parent / "results"
PYTHON = find_interpreter(ProcessConfig()).path


def say(text: str) -> None:
    print(text, flush=True)


def peers() -> list[Case]:
    cases = []
    bwrap = shutil.which("bwrap")
    if bwrap:
        system = [item for path in ("/usr", "/bin", "/lib", "/lib64", "/etc") for item in ("--ro-bind", path, path)]
        prefix = str(Path(PYTHON).resolve().parent.parent)
        options = [*system, "--ro-bind", prefix, prefix, "--proc", "/proc", "--dev", "/dev", "--unshare-all"]
        cases.append(Case("bwrap python3 -c", bare(bwrap, *options, "--", PYTHON, "-c", "print(1)")))
    else:
        say("bwrap is not installed: left out")
    try:
        from sandlock import Sandbox
    except ImportError:
        say("sandlock is not installed: left out")
        return cases
    readable = ["/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev", str(Path(PYTHON).resolve().parent.parent)]

    def run_sandlock() -> None:
        if not Sandbox(fs_readable=readable, clean_env=True).run([PYTHON, "-c", "print(1)"]).success:
            raise RuntimeError("sandlock could not run python")

    try:
        run_sandlock()
        cases.append(Case("sandlock python3 -c", run_sandlock))
    except Exception as error:
        say(f"sandlock does not work here ({error}): left out")
    return cases


def cold() -> None:
    """Everything from nothing: the zygote too."""
    with ProcessBackend(ProcessConfig(pool_size=0)) as backend:
        backend.execute_blocking(ExecRequest(Language.PYTHON, "print(1)", 30))


def hello(rounds: int) -> list[Figure]:
    with ExitStack() as stack:
        cases = standard_cases(stack)
        cases += [Case("warmcell, cold", cold), *peers()]
        return figures(measure(cases, rounds), cases[0].name)


def other_languages(rounds: int) -> list[Figure]:
    with ExitStack() as stack:
        warm = stack.enter_context(ProcessBackend(ProcessConfig(pool_min=2)))
        cases = [Case("bare sh -c", bare("/bin/sh", "-c", "echo hi"))]
        cases.append(Case("warmcell shell, warm cell", ours(warm, "echo hi", Language.COMMAND), until_ready(warm)))
        node = shutil.which("node")
        if node:
            other = stack.enter_context(ProcessBackend(ProcessConfig(pool_min=2)))
            cases.append(Case("bare node -e", bare(node, "-e", "console.log(1)")))
            code = ours(other, "console.log(1)", Language.JAVASCRIPT)
            cases.append(Case("warmcell node, warm cell", code, _node_ready(other)))
        return figures(measure(cases, rounds), cases[0].name)


def _node_ready(backend: ProcessBackend) -> Any:
    wait = until_ready(backend)

    def settle() -> None:
        wait()
        time.sleep(0.12)  # the cell stands at once; Node in it takes this long to be up

    return settle


def numpy_import(rounds: int) -> list[Figure]:
    code = "import numpy; print(int(numpy.arange(10).sum()))"
    try:
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    except subprocess.CalledProcessError:
        say("numpy is not installed: left out")
        return []
    with ProcessBackend(ProcessConfig(preload=["numpy"], pool_min=2)) as backend:
        cases = [
            Case("bare import numpy", bare(sys.executable, "-c", code)),
            Case("warmcell, numpy preloaded", ours(backend, code), until_ready(backend)),
        ]
        return figures(measure(cases, rounds), cases[0].name)


def cpu_bound(rounds: int) -> list[Figure]:
    code = "x = 0\nfor i in range(3_000_000): x += i * i % 7\nprint(x)"
    with ProcessBackend(ProcessConfig(pool_min=1)) as backend:
        cases = [
            Case("bare, 3 million steps", bare(PYTHON, "-c", code)),
            Case("warmcell, 3 million steps", ours(backend, code)),
        ]
        return figures(measure(cases, rounds), cases[0].name)


def sustained(seconds: float) -> list[dict[str, float]]:
    rows = []
    with ProcessBackend(ProcessConfig(pool_size=8, pool_min=4)) as backend:
        action = ours(backend)
        action()
        for callers in (1, 2, 8, 32):
            plain = throughput(bare(PYTHON, "-c", "print(1)"), callers, seconds)
            caged = throughput(action, callers, seconds)
            rows.append({"callers": callers, "bare": plain, "warmcell": caged, "ratio": caged / plain})
    return rows


def command_line(rounds: int) -> list[Figure]:
    command = [sys.executable, "-m", "warmcell", "run", "python", "-c", "print(1)"]
    cases = [Case("bare python3 -c", bare(PYTHON, "-c", "print(1)")), Case("warmcell run python -c", bare(*command))]
    return figures(measure(cases, rounds), cases[0].name)


def idle_cell_memory() -> dict[str, float]:
    """Proportional memory of a waiting cell (init and guest), from how much eight of them add."""
    with ProcessBackend(ProcessConfig(pool_size=8, pool_min=8)) as backend:
        backend.execute_blocking(ExecRequest(Language.PYTHON, "print(1)", 30))
        until_ready(backend, 8)()
        time.sleep(0.3)
        sizes = [_proportional(pid) for zygote in backend.zygote_pids for pid in _below(zygote)]
        return {"cells": backend.ready_cells, "pss_mb_per_cell": sum(sizes) / max(1, backend.ready_cells) / 1e6}


def _below(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [below for child in children for below in (int(child), *_below(int(child)))]


def _proportional(pid: int) -> int:
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("Pss:"))


def leak(runs: int) -> dict[str, float]:
    """What many runs leave in this process, between two moments at which the same number of cells wait."""

    def state() -> tuple[int, int]:
        until_ready(backend, 4)()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return len(os.listdir("/proc/self/fd")), resident

    with ProcessBackend() as backend:
        action = ours(backend)
        for _ in range(50):
            action()
        descriptors, resident = state()
        for _ in range(runs):
            action()
        after = state()
    return {"runs": runs, "descriptors": after[0] - descriptors, "resident_kb": (after[1] - resident) / 1024}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    options = parser.parse_args()
    rounds = max(5, options.rounds // 10) if options.quick else options.rounds
    seconds, runs = (1.0, 200) if options.quick else (4.0, 2000)
    report: dict[str, Any] = {"host": {"processors": os.cpu_count(), "kernel": platform.release()}, "rounds": rounds}
    groups = {
        "hello": lambda: hello(rounds),
        "other languages": lambda: other_languages(max(5, rounds // 4)),
        "numpy": lambda: numpy_import(max(5, rounds // 8)),
        "cpu bound": lambda: cpu_bound(max(5, rounds // 20)),
        "command line": lambda: command_line(max(5, rounds // 8)),
    }
    for name, group in groups.items():
        try:
            rows = group()
        except SandboxError as error:
            say(f"{name}: left out: {error}")
            continue
        if rows:
            say(f"\n{name}\n{table(rows)}")
            report[name] = [asdict(row) for row in rows]
    report["throughput"] = sustained(seconds)
    say("\nruns per second\ncallers      bare  warmcell   ratio")
    for row in report["throughput"]:
        say(f"{row['callers']:7.0f}  {row['bare']:8.1f}  {row['warmcell']:8.1f}  {row['ratio']:6.2f}")
    report["idle cell"] = idle_cell_memory()
    report["leak"] = leak(runs)
    say(f"\nidle cell: {report['idle cell']}\nleak: {report['leak']}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "process.json").write_text(json.dumps(report, indent=1) + "\n")
    chart = bar_chart("hello world, p50 (ms)", [(row["name"], row["p50"]) for row in report["hello"]])
    (RESULTS / "process.svg").write_text(chart)
    return judge(report)


def reached(report: dict[str, Any]) -> list[tuple[str, float, float]]:
    """What a release must reach: a name, what was measured and the most that it may be."""
    rows = {row["name"]: row for name in ("hello", "numpy", "command line") for row in report.get(name, [])}
    bare_start, our_start = (row["p50"] for row in report["command line"])
    eight = next(row for row in report["throughput"] if row["callers"] == 8)
    found = [
        ("warm cell, p50 of bare", rows["warmcell, warm cell"]["ratio"], 0.12),
        ("warm cell, p99 of bare p50", rows["warmcell, warm cell"]["ratio_p99"], 0.5),
        ("from the zygote, p50 of bare", rows["warmcell, from the zygote"]["ratio"], 0.45),
        ("bare runs of eight callers per one of ours", 1 / eight["ratio"], 1 / 2.5),
        ("idle cell, MB", report["idle cell"]["pss_mb_per_cell"], 4.0),
        ("command line, ms more than bare", our_start - bare_start, 120.0),
    ]
    if "warmcell, numpy preloaded" in rows:
        found.append(("numpy preloaded, p50 of bare", rows["warmcell, numpy preloaded"]["ratio"], 0.1))
    return found


def judge(report: dict[str, Any]) -> int:
    say("\ntargets")
    found = reached(report)
    for name, value, most in found:
        say(f"{'ok  ' if value <= most else 'MISS'} {name}: {value:.3f} (at most {most:g})")
    return any(value > most for _, value, most in found)


if __name__ == "__main__":
    sys.exit(main())
