"""The tables and the plot of benchmarks/peers.py."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chart import bar_chart

NOTES = """
"Start" is one run of `print(6*7)` from nothing, "warm" one with what the peer keeps between runs: medians of
interleaved rounds, with the ratio to bare in brackets. Each warm run of Warmcell has a fresh cage; Pyodide's share one
interpreter and see what earlier ones left. Eight callers repeat the warm run, or the start where there is none.
"Idle" is the proportional memory of the processes of one sandbox whose guest waits, for Warmcell those of the command
`warmcell run`; a dash means that the kernel hides one of them, or that the peer has no such command. The last column is
what the runs left ten seconds later: processes, files in the home and the temporary directory, and mounts. Warmcell's
processes are the cells that wait for the next run; they end with the backend. "Load" is that of other programs before
the run: on a busy machine compare ratios, not milliseconds. Fewer runs than asked for mean that the time was up.

In the second table, "yes" means that the attack was stopped. Each peer has the options for it that it offers
([commands](../peer_commands.py)), and the [attacks](../peer_attacks.py) are the same programs for all. All of them
succeed in the bare interpreter. One that fails for want of a feature, such as `fork` in Pyodide, counts as stopped.
Warmcell's timeout does not count time in which the guest waits for a processor, so on an overloaded machine a guest
that spins reaches its end ([why](../../docs/decisions/0024-verdicts-under-load.md)).
"""
HEADINGS = (
    "version | start, ms | warm, ms | runs/s, 8 callers | idle, MB | runs | failed | processes, files, mounts left"
)


@dataclass
class Row:
    """What was measured of one peer. None: not measured, or there is no such thing."""

    name: str
    version: str
    start_ms: float = 0.0
    start_ratio: float = 0.0
    warm_ms: float | None = None
    warm_ratio: float | None = None
    runs: int = 0
    runs_per_second: float = 0.0
    failed_runs: int = 0
    idle_mb: float | None = None
    left_processes: int = 0
    left_files: int = 0
    left_mounts: int = 0
    stopped: dict[str, bool | None] = field(default_factory=dict)


def lines(rows: Sequence[Row], missing: dict[str, str], about: dict[str, str]) -> Iterator[str]:
    yield "# Warmcell beside other sandboxes"
    yield ""
    yield f"| | {HEADINGS} |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for row in rows:
        warm = "" if row.warm_ms is None else _time_text(row.warm_ms, row.warm_ratio or 0)
        idle = "-" if row.idle_mb is None else f"{row.idle_mb:g}"
        left = f"{row.left_processes}, {row.left_files}, {row.left_mounts}"
        first = f"| {row.name} | {row.version} | {_time_text(row.start_ms, row.start_ratio)} | {warm} "
        yield f"{first}| {row.runs_per_second:g} | {idle} | {row.runs} | {row.failed_runs} | {left} |"
    yield ""
    yield f"| a guest that ... is stopped | {' | '.join(row.name for row in rows)} |"
    yield f"|---{'|---' * len(rows)}|"
    for name in rows[0].stopped:
        yield f"| {name} | {' | '.join(_answer(row.stopped[name]) for row in rows)} |"
    yield NOTES
    if missing:
        yield "Not measured:"
        yield ""
        yield from (f"- {name}: {reason}" for name, reason in missing.items())
        yield ""
    yield "![Bars: the time of one run for each sandbox.](peers.svg)"
    yield ""
    yield ", ".join(f"{name} {value}" for name, value in about.items())


def _time_text(milliseconds: float, ratio: float) -> str:
    return f"{milliseconds:.3g} ({ratio:.2g})" if milliseconds < 1000 else f"{milliseconds:.0f} ({ratio:.3g})"


def _answer(is_stopped: bool | None) -> str:
    return "did not start" if is_stopped is None else "yes" if is_stopped else "no"


def write(rows: Sequence[Row], missing: dict[str, str], about: dict[str, str], results: Path) -> None:
    text = "\n".join(lines(rows, missing, about))
    print(text)
    results.mkdir(exist_ok=True)
    (results / "peers.md").write_text(text + "\n")
    content = {"host": about, "rows": [asdict(row) for row in rows], "missing": missing}
    (results / "peers.json").write_text(json.dumps(content, indent=1) + "\n")
    warm = [(f"{row.name}, warm", row.warm_ms) for row in rows if row.warm_ms is not None]
    bars = [*((row.name, row.start_ms) for row in rows), *warm]
    (results / "peers.svg").write_text(bar_chart("one run, p50 (ms)", sorted(bars, key=lambda bar: bar[1])))
