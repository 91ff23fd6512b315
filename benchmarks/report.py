"""Targets for benchmarks/process.py, and the table and plot of its results, for both users."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from chart import bar_chart

from warmcell.diagnosis.bench import BARE, FROM_ZYGOTE, WARM

USERS = {"user": "ordinary user", "root": "root"}


class Target(NamedTuple):
    """A figure and its maximum for each user."""

    name: str
    value: float
    most: float


def targets(report: dict[str, Any], who: str) -> Iterator[Target]:
    rows = {row["name"]: row for name in ("hello", "numpy") for row in report.get(name, [])}
    rate = {row["callers"]: row for row in report["throughput"]}
    bare_start, our_start = (row["p50"] for row in report["command line"])
    yield Target("with pauses, p50, x bare", rows[WARM]["ratio"], 0.16 if who == "root" else 0.20)
    yield Target("with pauses, p99, x bare p50", rows[WARM]["ratio_p99"], 0.6)
    yield Target("back to back, one caller, x bare", round(1 / rate[1]["ratio"], 3), 0.55)
    yield Target("8 callers, bare runs to one of ours", round(1 / rate[8]["ratio"], 3), round(1 / 1.3, 3))
    yield Target("64 callers, to one run of 8 callers", round(rate[8]["warmcell"] / rate[64]["warmcell"], 3), 1.05)
    yield Target("processor time of a run, ms", report["processor time"]["all"], 9.0)
    yield Target("idle cell, MB", report["idle cell"]["pss_mb_per_cell"], 4.0)
    if "warmcell, numpy preloaded" in rows:
        yield Target("numpy preloaded, x bare", rows["warmcell, numpy preloaded"]["ratio"], 0.05)
    yield Target("command line, ms more than bare", round(our_start - bare_start, 1), 60.0)
    yield Target("descriptors left by 2,000 runs", report["leak"]["descriptors"], 0)


def judge(report: dict[str, Any], who: str) -> int:
    """Print each target with its result; return 1 if one was missed."""
    print("\ntargets")
    found = list(targets(report, who))
    for name, value, most in found:
        print(f"{'ok  ' if value <= most else 'MISS'} {name}: {value:g} (at most {most:g})")
    return int(any(value > most for _, value, most in found))


def write_summary(results: Path) -> None:
    """Write one table and one plot from the available results of both users."""
    paths = {who: results / f"process-{who}.json" for who in USERS}
    reports = {who: json.loads(path.read_text()) for who, path in paths.items() if path.exists()}
    (results / "process.md").write_text("\n".join(_lines(reports)) + "\n")
    bars = [(f"{name} ({USERS[who]})", value) for who, report in reports.items() for name, value in _bars(report)]
    (results / "process.svg").write_text(bar_chart("hello world, p50 (ms)", bars))


def _bars(report: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for row in report["hello"]:
        if row["name"] in (BARE, FROM_ZYGOTE, WARM) or not row["name"].startswith(("bare", "warmcell")):
            yield row["name"], row["p50"]


def _lines(reports: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Targets first, then the processor time by process, then the machine."""
    names = list(reports)
    yield f"| | {' | '.join(f'{USERS[who]} | at most' for who in names)} |"
    yield f"|---{'|---:|---:' * len(names)}|"
    columns = [list(targets(reports[who], who)) for who in names]
    for cells in zip(*columns, strict=False):
        yield f"| {cells[0].name} | {' | '.join(f'{cell.value:g} | {cell.most:g}' for cell in cells)} |"
    yield ""
    yield f"| processor time per run, ms | {' | '.join(USERS[who] for who in names)} |"
    yield f"|---{'|---:' * len(names)}|"
    for stage in reports[names[0]]["processor time"]:
        yield f"| {stage} | {' | '.join(str(reports[who]['processor time'][stage]) for who in names)} |"
    yield ""
    for who, report in reports.items():
        host = report["host"]
        bare = next(row["p50"] for row in report["hello"] if row["name"] == BARE)
        about = f"{host['processors']} processors, Linux {host['kernel']}, Python {host['python']}"
        yield f"{USERS[who]}: {about}, {report['rounds']} rounds, bare {bare:g} ms."
