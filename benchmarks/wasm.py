"""The cost of WASM runs beside the host's own commands, interleaved in one process so that noise affects all alike.

    python benchmarks/wasm.py [--quick] [--installed ENVIRONMENT] [--results DIRECTORY]

Run it as an ordinary user. Small commands run on a warm worker with a pause before each; the big ones over 10 MB of
generated text. `--installed` adds the command line and the first run of a new account, with the warmcell of a virtual
environment that has precompiled modules:

    python3 -m venv ENVIRONMENT && WARMCELL_PRECOMPILE=1 ENVIRONMENT/bin/pip install '.[wasm]' ./packages/toolbox

A command whose module this installation lacks is left out and named. Writes wasm.json and wasm.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from wasm_report import Row, Target, row, write

from warmcell import Sandbox
from warmcell.backends.wasm.backend import WasmBackend
from warmcell.backends.wasm.run_request import Preopen
from warmcell.backends.wasm.toolbox_runner import ToolboxRunner
from warmcell.core.errors import BackendUnavailable, CommandNotFound, ExecutionFailed, SandboxError
from warmcell.core.types import ExecRequest
from warmcell.guest.wasm.protocol import RunLimits

RESULTS = Path(__file__).resolve().parent / "results"
HELLO = """(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1) (data (i32.const 8) "hello\\n")
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 8)) (i32.store (i32.const 4) (i32.const 6))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 20)))))"""
TARGETS = {
    "hello.wat": Target(0.7),
    "echo hi": Target(1.0),
    "echo hi | wc -c": Target(1.5),
    "node -p 1+1": Target(2.0),
    "python3 -c print(1)": Target(6.0),
    "grep -c needle": Target(2.0, "x bare"),
}
SMALL = {
    "echo hi": ["echo", "hi"],
    "echo hi | wc -c": ["sh", "-c", "echo hi | wc -c"],
    "yes | head -n 1000": ["sh", "-c", "yes | head -n 1000"],
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
#: Long enough for a worker to have its next instance ready, and for caches to get cold.
PAUSE_SECONDS = 0.01
#: Bare commands are far slower than ours, and vary less.
TURNS_PER_BARE = 5
#: The spare worker is begun a moment after a run, and takes a few hundredths of a second.
SPARE_SECONDS = 1.0
Action = Callable[[], object]


def milliseconds(action: Action) -> float:
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1000


def make_text(directory: Path, size: int = 10_000_000) -> None:
    """Generate lines of words and a number, and the same as JSON, with a fixed seed."""
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
    """Ours and the host's command, in the same directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.toolbox = ToolboxRunner()
        self.backend = WasmBackend()
        self.rows: list[Row] = []
        self.left_out: list[str] = []

    def close(self) -> None:
        self.toolbox.close()
        self.backend.close()

    def small(self, turns: int) -> None:
        hello = ExecRequest("wasm", HELLO, 10)
        part = "with pauses"
        self.measure(
            part, "hello.wat", lambda: self.backend.execute_blocking(hello), self.bare(["sh", "-c", ":"]), turns
        )
        for name, argv in SMALL.items():
            self.measure(part, name, self.ours(argv), self.bare(argv), turns)

    def big(self, turns: int) -> None:
        make_text(self.directory)
        for name, argv in BIG.items():
            self.measure("over 10 MB", name, self.ours(argv), self.bare(argv), turns, turns_per_bare=1)

    def new_sandboxes(self, turns: int) -> None:
        """From the constructor to the end of the first command, in a program that has used a sandbox before."""
        taken = []
        with Sandbox(backend="wasm") as kept:
            for _ in range(turns):
                kept.sh("echo hi")
                time.sleep(SPARE_SECONDS)
                started = time.perf_counter()
                with Sandbox(backend="wasm") as new:
                    new.sh("echo hi")
                    taken.append((time.perf_counter() - started) * 1000)
        self.rows.append(row("new sandbox", "its first echo hi", taken, [], Target(10.0)))

    def ours(self, argv: list[str]) -> Action:
        preopens = [Preopen(self.directory, "/work", True)]

        def run() -> None:
            result = self.toolbox.run_command(argv, RunLimits(120), cwd="/work", preopens=preopens)
            if result.exit_code != 0:
                raise ExecutionFailed(f"exit {result.exit_code}: {result.stderr.strip()[:200]}")

        return run

    def bare(self, argv: list[str]) -> Action | None:
        if shutil.which(argv[0]) is None:
            return None
        return lambda: subprocess.run(argv, cwd=self.directory, capture_output=True, check=False)

    def measure(
        self, part: str, name: str, ours: Action, bare: Action | None, turns: int, turns_per_bare: int = TURNS_PER_BARE
    ) -> None:
        try:
            ours()
        except (BackendUnavailable, CommandNotFound) as error:
            self.left_out.append(f"{name}: {error}")
            return
        except SandboxError as error:
            self.left_out.append(f"{name}: FAILED: {error}")
            return
        mine, theirs = [], []
        for turn in range(turns):
            if bare is not None and turn % turns_per_bare == 0:
                theirs.append(milliseconds(bare))
            time.sleep(PAUSE_SECONDS)
            mine.append(milliseconds(ours))
        self.rows.append(row(part, name, mine, theirs, TARGETS.get(name)))


class Installed:
    """The command of a virtual environment, with a private HOME."""

    def __init__(self, environment: Path, directory: Path) -> None:
        self._programs = environment.absolute() / "bin"
        self._directory = directory
        self._homes = 0

    def rows(self, turns: int) -> list[Row]:
        self.new_home()
        used = [self.milliseconds("warmcell", "sh", "echo hi") for _ in range(turns + 1)][1:]
        bare = [self.milliseconds("python", "-c", "pass") for _ in range(turns)]
        return [
            row("command line", "warmcell sh 'echo hi'", used, bare, Target(60.0, "ms more")),
            self.first_use("echo hi", turns, Target(1000.0)),
            self.first_use("python3 -c 'print(1)'", turns, Target(2000.0)),
        ]

    def first_use(self, script: str, turns: int, target: Target) -> Row:
        taken = []
        for _ in range(max(1, turns // 3)):
            self.new_home()
            taken.append(self.milliseconds("warmcell", "sh", script))
        return row("a new account's first", f"warmcell sh {shlex.quote(script)}", taken, [], target)

    def new_home(self) -> None:
        self._homes += 1
        self._home = self._directory / f"home-{self._homes}"
        self._home.mkdir()

    def milliseconds(self, program: str, *arguments: str) -> float:
        argv = [str(self._programs / program), *arguments]
        environment = {"HOME": str(self._home), "PATH": os.defpath, "LANG": "C.UTF-8"}
        return milliseconds(
            lambda: subprocess.run(argv, cwd=self._home, env=environment, stdout=subprocess.DEVNULL, check=True)
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the turns")
    parser.add_argument("--installed", type=Path, metavar="ENVIRONMENT", help="also measure its command line")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the figures are written")
    options = parser.parse_args()
    scale = 1 if options.quick else 10
    with tempfile.TemporaryDirectory(prefix="bench-of-warmcell-") as name:
        bench = Bench(Path(name))
        bench.small(20 * scale)
        bench.new_sandboxes(1 + scale)
        bench.big(2 if options.quick else 3)
        bench.close()
        if options.installed:
            bench.rows += Installed(options.installed, Path(name)).rows(1 + scale)
    return write(bench.rows, bench.left_out, options.results)


if __name__ == "__main__":
    sys.exit(main())
