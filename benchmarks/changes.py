"""What changes that can be taken back cost: the start in a large repository, and listing and committing 1,000 files.

    python benchmarks/changes.py [--files 100000] [--rounds 5] [--results DIR]

Run it as an ordinary user. Beside it: what others do to keep a directory safe (a copy, by `cp -a` and, where it is
installed, `rsync -a`), and what git needs to find and record the same changes. Medians of the rounds; prints a table
and writes benchmarks/results/changes.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from warmcell import Sandbox

RESULTS = Path(__file__).parent / "results"
CHANGED = 1000
_PER_DIRECTORY = 100


def make_repository(place: Path, files: int) -> None:
    for number in range(files):
        directory = place / f"d{number // _PER_DIRECTORY // 50}" / f"s{number // _PER_DIRECTORY}"
        if number % _PER_DIRECTORY == 0:
            directory.mkdir(parents=True)
        (directory / f"f{number % _PER_DIRECTORY}.txt").write_text(f"file {number}\n" * 5)


def measure(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def command(*argv: str | Path) -> Callable[[], object]:
    return lambda: subprocess.run(list(map(str, argv)), check=True, capture_output=True)


def first_command(place: Path, work_path: str) -> float:
    """Until the command has ended. Closing the sandbox is not part of it."""
    began = time.perf_counter()
    with Sandbox(work_dir=place, work_path=work_path, changes="ask") as sandbox:
        assert sandbox.sh("cat d0/s0/f0.txt").ok
        return time.perf_counter() - began


def change_files(place: Path, step: int) -> str:
    """A program that appends to every `step`-th file of the first ones."""
    names = sorted(str(path.relative_to(place)) for path in place.glob("d*/s*/f*.txt"))[::step][:CHANGED]
    return f"for name in {names!r}:\n    open(name, 'a').write('changed\\n')\n"


def measure_changes(place: Path, rounds: int, program: str) -> dict[str, float]:
    times: dict[str, list[float]] = {"changes": [], "patch": [], "commit": []}
    for _ in range(rounds):
        with Sandbox(work_dir=place, work_path="host", changes="ask") as sandbox:
            assert sandbox.run(program).ok
            times["changes"].append(measure(sandbox.changes))
            times["patch"].append(measure(sandbox.changes_patch))
            times["commit"].append(measure(sandbox.commit))
    return {name: statistics.median(values) for name, values in times.items()}


def measure_git(place: Path, rounds: int, program: str) -> dict[str, float]:
    git = ("git", "-C", place, "-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "gc.auto=0")
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "first")):
        command(*git, *arguments)()
    times: dict[str, list[float]] = {"git status": [], "git commit -a": []}
    for _ in range(rounds):
        subprocess.run(["python3", "-c", program], cwd=place, check=True)
        times["git status"].append(measure(command(*git, "status", "--porcelain")))
        times["git commit -a"].append(measure(command(*git, "commit", "-qam", "next")))
    shutil.rmtree(place / ".git")
    return {name: statistics.median(values) for name, values in times.items()}


def measure_copies(place: Path, target: Path) -> dict[str, float]:
    copies = {"cp -a": ("cp", "-a"), "rsync -a": ("rsync", "-a")}
    found = {}
    for name, argv in copies.items():
        if shutil.which(argv[0]):
            found[name] = measure(command(*argv, f"{place}/.", target))
            shutil.rmtree(target)
    return found


def measure_all(files: int, rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=os.path.expanduser("~")) as top:
        place, small = Path(top) / "large", Path(top) / "small"
        make_repository(place, files)
        make_repository(small, _PER_DIRECTORY)
        program = change_files(place, max(1, files // CHANGED))
        found = {}
        with Sandbox() as other:  # a program that has another sandbox, whose zygote serves the new one too
            other.sh("true")
            for name, directory in ((f"{_PER_DIRECTORY} files", small), (f"{files} files", place)):
                for path in ("/work", "host"):
                    first_command(directory, path)
                    times = [first_command(directory, path) for _ in range(rounds)]
                    found[f"sandbox and first command, {name}, at {path}"] = statistics.median(times)
        found |= measure_changes(place, rounds, program)
        return found | measure_git(place, rounds, program) | measure_copies(place, Path(top) / "copy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    found = measure_all(options.files, options.rounds)
    for name, seconds in found.items():
        print(f"{name:<55} {seconds * 1000:10.1f} ms")
    options.results.mkdir(exist_ok=True)
    report = {"files": options.files, "changed": CHANGED, "milliseconds": {k: v * 1000 for k, v in found.items()}}
    (options.results / "changes.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
