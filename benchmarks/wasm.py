"""What a WASM run costs, in one process with bare `sh`, each turn one of each so that a busy machine hits all alike.

    python benchmarks/wasm.py [--turns 200] [--big-turns 3] [--json FILE]

The small commands are measured on a warm worker; the figures that issue readers care about are p50 and p95. The big
ones run over 10 MB of generated text. A command whose module this installation lacks is left out and named.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from warmcell.backends.wasm.backend import WasmBackend
from warmcell.backends.wasm.run_request import Preopen
from warmcell.backends.wasm.toolbox_runner import ToolboxRunner
from warmcell.core.errors import BackendUnavailable, CommandNotFound, ExecutionFailed, SandboxError
from warmcell.core.types import ExecRequest

HELLO = """(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1) (data (i32.const 8) "hello\\n")
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 8)) (i32.store (i32.const 4) (i32.const 6))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 20)))))"""
#: What must be reached, p50 in milliseconds on a warm worker.
TARGETS = {
    "hello.wat": 0.7,
    "echo hi": 1.0,
    "sh -c 'echo hi | wc -c'": 1.5,
    "node -p 1+1": 2.0,
    "python3 -c print(1)": 6.0,
}
SMALL = {
    "echo hi": ["echo", "hi"],
    "sh -c 'echo hi | wc -c'": ["sh", "-c", "echo hi | wc -c"],
    "sh -c 'yes | head -n 1000'": ["sh", "-c", "yes | head -n 1000"],
    "node -p 1+1": ["node", "-p", "1+1"],
    "python3 -c print(1)": ["python3", "-c", "print(1)"],
}
BIG = {
    "grep -c needle": ["grep", "-c", "needle", "big.txt"],
    "grep -cE 'n[aeiou]+dle$'": ["grep", "-cE", "n[aeiou]+dle$", "big.txt"],
    "wc": ["wc", "big.txt"],
    "wc -l": ["wc", "-l", "big.txt"],
    "sort > out": ["sh", "-c", "sort big.txt > out.txt"],
    "awk sum": ["awk", "{s+=$2} END {print s}", "big.txt"],
    "sha256sum": ["sha256sum", "big.txt"],
    "jq length": ["jq", "length", "big.json"],
    "node ten million steps": ["node", "-e", "let s=0; for (let i=0;i<1e7;i++) s+=i; console.log(s)"],
}


@dataclass
class Row:
    """Milliseconds of one command, ours and the host's own."""

    name: str
    p50: float
    p95: float
    bare_p50: float | None
    target: float | None = None

    def line(self) -> str:
        bare = f"{self.bare_p50:10.2f}" if self.bare_p50 is not None else "         -"
        verdict = (
            "" if self.target is None else f"  {'ok' if self.p50 <= self.target else 'OVER'} (at most {self.target})"
        )
        return f"{self.name:30}{self.p50:10.2f}{self.p95:10.2f}{bare}{verdict}"


def milliseconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1000


def p95(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]


def make_text(directory: Path, size: int = 10_000_000) -> None:
    """Lines of words and a number, and the same as JSON; the seed is fixed."""
    generator = random.Random(5)
    words = ["haystack", "needle", "lorem", "ipsum", "dolor", "sit", "amet", "noodle", "naadle"]
    lines = []
    total = 0
    while total < size:
        line = f"{generator.choice(words)} {generator.randrange(10**6)} {' '.join(generator.choices(words, k=5))}"
        lines.append(line)
        total += len(line) + 1
    (directory / "big.txt").write_text("\n".join(lines) + "\n")
    (directory / "big.json").write_text(json.dumps([line.split() for line in lines]))


class Bench:
    """Both sides over the same directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.toolbox = ToolboxRunner()
        self.backend = WasmBackend()
        self.missing: list[str] = []

    def ours(self, argv: list[str]) -> Callable[[], object]:
        preopens = [Preopen(self.directory, "/work", True)]

        def run() -> None:
            result = self.toolbox.run_command(argv, timeout=120, cwd="/work", preopens=preopens)
            if result.exit_code != 0:
                raise ExecutionFailed(f"exit {result.exit_code}: {result.stderr.strip()[:200]}")

        return run

    def bare(self, argv: list[str]) -> Callable[[], object] | None:
        if shutil.which(argv[0]) is None:
            return None
        return lambda: subprocess.run(argv, cwd=self.directory, capture_output=True, check=False)

    def measure(
        self, name: str, ours: Callable[[], object], bare: Callable[[], object] | None, turns: int
    ) -> Row | None:
        try:
            ours()
        except (BackendUnavailable, CommandNotFound) as error:
            self.missing.append(f"{name}: {error}")
            return None
        except SandboxError as error:
            self.missing.append(f"{name}: FAILED: {error}")
            return None
        mine, theirs = [], []
        for _ in range(turns):
            mine.append(milliseconds(ours))
            if bare is not None:
                theirs.append(milliseconds(bare))
        middle = statistics.median(theirs) if theirs else None
        return Row(name, statistics.median(mine), p95(mine), middle, TARGETS.get(name))


def run(turns: int, big_turns: int) -> tuple[list[Row], list[str]]:
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        make_text(bench.directory)
        hello = ExecRequest("wasm", HELLO, 10)
        rows = [
            bench.measure(
                "hello.wat", lambda: bench.backend.execute_blocking(hello), bench.bare(["sh", "-c", ":"]), turns
            )
        ]
        rows += [bench.measure(name, bench.ours(argv), bench.bare(argv), turns) for name, argv in SMALL.items()]
        rows += [bench.measure(name, bench.ours(argv), bench.bare(argv), big_turns) for name, argv in BIG.items()]
        bench.toolbox.close()
        bench.backend.close()
        return [row for row in rows if row is not None], bench.missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--big-turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows, missing = run(options.turns, options.big_turns)
    print(f"{'milliseconds':30}{'p50':>10}{'p95':>10}{'bare p50':>10}")
    for row in rows:
        print(row.line())
    for line in missing:
        print(f"left out: {line}", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
