"""The cost of an isolated process run, against bare runs and peers, interleaved in one process.

    python benchmarks/process.py [--rounds 200] [--quick] [--results DIRECTORY]

Run it as an ordinary user, which is the reference, and as root. It prints tables, checks the targets, and writes
benchmarks/results/process-user.json or process-root.json, and from both of them process.md and process.svg. Peers that
are not installed (benchmarks/requirements.txt) are left out with a line that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from report import judge, write_summary
from stages import processor_time

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.errors import SandboxError
from warmcell.core.types import ExecRequest, Language
from warmcell.diagnosis.bench import (
    BARE,
    HELLO,
    Case,
    Figure,
    bare,
    empty_environment,
    figures,
    measure,
    ours,
    rate_table,
    rates,
    standard_cases,
    table,
    wait_until_ready,
)
from warmcell.languages.config import ProcessConfig
from warmcell.languages.python import find_interpreter

RESULTS = Path(__file__).parent / "results"
PYTHON = find_interpreter(ProcessConfig()).path
CALLERS = (1, 2, 8, 64)


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
    """A cold run, including the start of the zygote."""
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
        cases.append(Case("warmcell shell, warm cell", ours(warm, "echo hi", Language.COMMAND), wait_until_ready(warm)))
        node = shutil.which("node")
        if node:
            other = stack.enter_context(ProcessBackend(ProcessConfig(pool_min=2)))
            cases.append(Case("bare node -e", bare(node, "-e", "console.log(1)")))
            code = ours(other, "console.log(1)", Language.JAVASCRIPT)
            cases.append(Case("warmcell node, warm cell", code, _node_ready(other)))
        return figures(measure(cases, rounds), cases[0].name)


def _node_ready(backend: ProcessBackend) -> Any:
    wait = wait_until_ready(backend)

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
            Case("warmcell, numpy preloaded", ours(backend, code), wait_until_ready(backend)),
        ]
        return figures(measure(cases, rounds), cases[0].name)


def run_cpu_bound(rounds: int) -> list[Figure]:
    code = "x = 0\nfor i in range(3_000_000): x += i * i % 7\nprint(x)"
    with ProcessBackend(ProcessConfig(pool_min=1)) as backend:
        cases = [
            Case("bare, 3 million steps", bare(PYTHON, "-c", code)),
            Case("warmcell, 3 million steps", ours(backend, code)),
        ]
        return figures(measure(cases, rounds), cases[0].name)


def command_line(rounds: int, python: str) -> list[Figure]:
    """The installed command against bare Python."""
    script = Path(sys.executable).with_name("warmcell")
    cases = [Case(BARE, bare(python, "-c", HELLO))]
    cases.append(Case("warmcell run python -c", bare(str(script), "run", "python", "-c", HELLO)))
    return figures(measure(cases, rounds), cases[0].name)


def idle_cell_memory() -> dict[str, float]:
    """Proportional memory of a waiting cell (init and guest): the difference between four cells and none, per cell."""
    with ProcessBackend(ProcessConfig(pool_size=4, pool_min=4)) as backend:
        backend.execute_blocking(ExecRequest(Language.PYTHON, HELLO, 30))
        wait_until_ready(backend, 4)()
        time.sleep(0.5)
        (manager,) = backend.zygote_pids
        own = os.stat(f"/proc/{manager}/ns/mnt").st_ino
        cells = [pid for pid in _below(manager) if _namespace(pid) != own]  # not the zygote, and not the watcher
        sizes = [_proportional(pid) for pid in cells]
        return {"cells": backend.ready_cells, "pss_mb_per_cell": round(sum(sizes) / backend.ready_cells / 1e6, 2)}


def _namespace(pid: int) -> int:
    """An unreadable init has an empty command line; the manager's helper does not."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino
    except PermissionError:
        return 0


def _below(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [below for child in children for below in (int(child), *_below(int(child)))]


def _proportional(pid: int) -> int:
    """A sleeping init is not readable and counts as two pages."""
    try:
        return _pss(pid)
    except PermissionError:
        return 2 * os.sysconf("SC_PAGE_SIZE")


def _pss(pid: int) -> int:
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("Pss:"))


def leak(runs: int) -> dict[str, float]:
    """What many runs leave in this process, measured with the same number of waiting cells before and after."""

    def state() -> tuple[int, int]:
        wait_until_ready(backend, 4)()
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
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the figures are written")
    options = parser.parse_args()
    rounds = max(5, options.rounds // 10) if options.quick else options.rounds
    seconds, runs = (1.0, 200) if options.quick else (8.0, 2000)
    with tempfile.TemporaryDirectory(prefix="bench-of-warmcell-") as directory:
        report = measure_all(rounds, seconds, runs, empty_environment(directory))
    who = "root" if os.geteuid() == 0 else "user"
    options.results.mkdir(exist_ok=True)
    (options.results / f"process-{who}.json").write_text(json.dumps(report, indent=1) + "\n")
    write_summary(options.results)
    return judge(report, who)


def measure_all(rounds: int, seconds: float, runs: int, python: str) -> dict[str, Any]:
    about = {"processors": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
    report: dict[str, Any] = {"host": about, "rounds": rounds}
    groups = {
        "hello": lambda: hello(rounds),
        "other languages": lambda: other_languages(max(5, rounds // 4)),
        "numpy": lambda: numpy_import(max(5, rounds // 8)),
        "cpu bound": lambda: run_cpu_bound(max(5, rounds // 20)),
        "command line": lambda: command_line(max(5, rounds // 8), python),
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
    many = rates(CALLERS, seconds, python)
    say(f"\nruns per second\n{rate_table(many)}")
    report["throughput"] = [asdict(row) for row in many]
    report["processor time"] = processor_time(runs // 2)
    report["idle cell"] = idle_cell_memory()
    report["leak"] = leak(runs)
    for name in ("processor time", "idle cell", "leak"):
        say(f"\n{name}: {report[name]}")
    return report


if __name__ == "__main__":
    sys.exit(main())
