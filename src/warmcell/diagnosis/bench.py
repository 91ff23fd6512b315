"""`warmcell bench`: what a run costs on this host, as ratios against a bare interpreter in the same loop.

Bare is `python3 -c` in an empty virtual environment. With `.pth` files of other packages the baseline would be slower,
and everything else would look fast.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from warmcell.backends.process.backend import ProcessBackend
from warmcell.core.types import ExecRequest, Language
from warmcell.languages.config import ProcessConfig
from warmcell.lifetime.host_program import own_interpreter
from warmcell.lifetime.temporary_directory import temporary_directory

Action = Callable[[], object]

HELLO = "print(1)"
PAUSE_SECONDS = 0.02
BARE, WARM, FROM_ZYGOTE = "bare python3 -c", "warmcell, with pauses", "warmcell, from the zygote"


@dataclass(frozen=True, slots=True)
class Case:
    """Something to time. `prepare` runs before each sample and is not timed."""

    name: str
    action: Action
    prepare: Action | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """Milliseconds, and ratios to the baseline's median."""

    name: str
    p50: float
    p95: float
    p99: float
    ratio: float
    ratio_p99: float
    samples: int


def measure(cases: Sequence[Case], rounds: int) -> dict[str, list[float]]:
    """Time every case once per round, so that noise on the host affects all alike."""
    times: dict[str, list[float]] = {case.name: [] for case in cases}
    for case in cases:
        case.action()
    for _ in range(rounds):
        for case in cases:
            if case.prepare:
                case.prepare()
            started = time.perf_counter()
            case.action()
            times[case.name].append((time.perf_counter() - started) * 1000)
    return times


def figures(times: dict[str, list[float]], baseline: str) -> list[Figure]:
    base = _quantile(times[baseline], 0.5)
    return [
        Figure(
            name,
            p50=round(_quantile(values, 0.5), 3),
            p95=round(_quantile(values, 0.95), 3),
            p99=round(_quantile(values, 0.99), 3),
            ratio=round(_quantile(values, 0.5) / base, 4),
            ratio_p99=round(_quantile(values, 0.99) / base, 4),
            samples=len(values),
        )
        for name, values in times.items()
    ]


def _quantile(values: Iterable[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def table(rows: Sequence[Figure]) -> str:
    width = max(len(row.name) for row in rows)
    lines = [f"{'':{width}}  {'p50 ms':>8}  {'p95 ms':>8}  {'p99 ms':>8}  {'x bare':>7}"]
    lines += [f"{r.name:{width}}  {r.p50:8.2f}  {r.p95:8.2f}  {r.p99:8.2f}  {r.ratio:7.3f}" for r in rows]
    return "\n".join(lines)


def bare(*argv: str) -> Action:
    """A child process without a sandbox."""
    return lambda: subprocess.run(argv, capture_output=True, check=True, stdin=subprocess.DEVNULL)


def ours(backend: ProcessBackend, code: str = HELLO, language: Language = Language.PYTHON) -> Action:
    request = ExecRequest(language, code, 60)
    return lambda: backend.execute_blocking(request)


def empty_environment(directory: str) -> str:
    """Create an empty virtual environment; return its interpreter."""
    from venv import EnvBuilder

    EnvBuilder(symlinks=True).create(directory)
    return os.path.join(directory, "bin", "python3")


def wait_until_ready(backend: ProcessBackend, cells: int = 1) -> Action:
    """Wait until cells are ready and pause, so that the next run is warm."""

    def wait() -> None:
        deadline = time.monotonic() + 10
        while backend.ready_cells < cells and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(PAUSE_SECONDS)

    return wait


def throughput(action: Action, callers: int, seconds: float) -> float:
    """Runs per second with concurrent callers."""
    end = time.monotonic() + seconds

    def call() -> int:
        done = 0
        while time.monotonic() < end:
            action()
            done += 1
        return done

    started = time.monotonic()
    with ThreadPoolExecutor(callers) as threads:
        total = sum(threads.map(lambda _: call(), range(callers)))
    return total / (time.monotonic() - started)


def standard_cases(stack: ExitStack) -> list[Case]:
    """The standard cases. The first one is the baseline."""
    python = empty_environment(stack.enter_context(temporary_directory("bench")))
    warm = stack.enter_context(ProcessBackend(ProcessConfig(pool_min=2)))
    unpooled = stack.enter_context(ProcessBackend(ProcessConfig(pool_size=0)))
    return [
        Case(BARE, bare(python, "-c", HELLO)),
        Case("bare python3 -I -S -c", bare(python, "-I", "-S", "-c", HELLO)),
        Case(FROM_ZYGOTE, ours(unpooled)),
        Case(WARM, ours(warm), wait_until_ready(warm)),
    ]


@dataclass(frozen=True, slots=True)
class Rate:
    """Runs per second with concurrent callers, each of which runs in a loop."""

    callers: int
    bare: float
    warmcell: float
    ratio: float


def rates(callers: Sequence[int], seconds: float, python: str) -> list[Rate]:
    """Measure bare and caged alternately, so that noise on the host affects both alike."""
    found = []
    with ProcessBackend(ProcessConfig(pool_size=8)) as backend:
        actions = (bare(python, "-c", HELLO), ours(backend))
        actions[1]()
        for count in callers:
            done = [throughput(action, count, seconds / 2) for action in actions * 2]
            plain, caged = (done[0] + done[2]) / 2, (done[1] + done[3]) / 2
            found.append(Rate(count, round(plain, 1), round(caged, 1), round(caged / plain, 3)))
    return found


def rate_table(rows: Sequence[Rate]) -> str:
    lines = ["callers    bare/s  warmcell/s   x bare"]
    return "\n".join([*lines, *(f"{r.callers:7}  {r.bare:8.1f}  {r.warmcell:10.1f}  {r.ratio:7.2f}" for r in rows)])


def main(rounds: int, *, as_json: bool = False) -> int:
    with ExitStack() as stack:
        cases = standard_cases(stack)
        own = Case("your python3 -c", bare(own_interpreter(), "-c", HELLO))
        rows = figures(measure([*cases, own], rounds), cases[0].name)
        python = empty_environment(stack.enter_context(temporary_directory("bench")))
        many = rates((1, 8), min(2.0, rounds / 10), python)
    if as_json:
        print(json.dumps({"hello": [asdict(row) for row in rows], "throughput": [asdict(row) for row in many]}))
    else:
        print(f"{table(rows)}\n\n{rate_table(many)}")
        about = f"{os.cpu_count()} processors, Python {sys.version.split()[0]}, {rounds} rounds"
        print(f"{about}; bare is an empty virtual environment, yours is {sys.executable}", file=sys.stderr)
    return 0
