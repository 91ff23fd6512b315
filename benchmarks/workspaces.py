"""What workspaces cost: snapshots of 10,000 files, first and after ten changes, and resuming, beside other programs.

    python benchmarks/workspaces.py [--files 10000] [--results DIR]

Run it as an ordinary user. Every program works on the same tree and file system; those that are not installed are
left out. Prints a table and writes benchmarks/results/workspaces.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from warmcell.workspaces import WorkspaceStore

RESULTS = Path(__file__).parent / "results"
CHANGES = 10
#: First, after the changes, and back: what one program is timed with.
Steps = tuple[Callable[[Path], object], Callable[[Path], object], Callable[[Path], object]]


def make_tree(path: Path, files: int) -> None:
    """Source files in a hundred directories: 2 KB each, which compress to a third."""
    chance = random.Random(1)
    words = [f"{chance.getrandbits(40):x}" for _ in range(500)]
    for number in range(files):
        place = path / f"d{number % 100}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"f{number}.py").write_text(" ".join(chance.choices(words, k=200)))


def change(path: Path, files: int) -> None:
    for number in range(0, files, files // CHANGES):
        (path / f"d{number % 100}/f{number}.py").write_text(f"changed {number}\n" * 50)


def measure(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return round(time.perf_counter() - began, 3)


def size_of(path: Path) -> int:
    """Without the work directories of our store; files with several names count once."""
    files = (file for file in path.rglob("*") if file.is_file() and (path / "work") not in file.parents)
    return sum({state.st_ino: state.st_size for state in map(Path.lstat, files)}.values())


def measure_program(scratch: Path, name: str, files: int, steps: Steps) -> dict[str, float]:
    """`steps` get the directory of the program, which has the tree below `tree`."""
    place = scratch / name
    make_tree(place / "tree", files)
    time.sleep(0.2)  # files that were just written are read again by programs that compare times
    first = measure(lambda: steps[0](place))
    before = size_of(place / "kept")
    change(place / "tree", files)
    second = measure(lambda: steps[1](place))
    added = size_of(place / "kept") - before
    back = measure(lambda: steps[2](place))
    shutil.rmtree(place)
    return {"first_s": first, "after_ten_s": second, "resume_s": back, "stored": before, "added": added}


def ours() -> Steps:
    def open_store(place: Path) -> tuple[WorkspaceStore, str]:
        store = WorkspaceStore(place / "kept")
        return store, next(iter(store.list())).id

    def first(place: Path) -> None:
        store = WorkspaceStore(place / "kept")
        made = store.provision()
        work = Path(store.path, "work", made.id)
        os.rmdir(work)
        os.rename(place / "tree", work)
        os.symlink(work, place / "tree")
        store.snapshot(made)

    def second(place: Path) -> None:
        store, identity = open_store(place)
        store.snapshot(identity)

    def back(place: Path) -> None:
        store, _ = open_store(place)
        store.resume(store.snapshots()[-1].id)

    return first, second, back


def commands(*lines: str) -> Steps:
    def step(line: str) -> Callable[[Path], object]:
        env = {**os.environ, "RESTIC_PASSWORD": "x", "GIT_CONFIG_GLOBAL": "/dev/null"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return lambda place: subprocess.run(["sh", "-ec", line], cwd=place, env=env, check=True, **quiet)  # type: ignore[call-overload]

    first, second, back = lines
    return step(first), step(second), step(back)


def peers() -> dict[str, Steps]:
    commit = "git -C tree -c user.name=x -c user.email=x@example.com commit -qm x"
    every = {
        "git": commands(
            f"git init -q --separate-git-dir=kept tree; git -C tree add -A; {commit}",
            f"git -C tree add -A; {commit}",
            "git clone -q kept back",
        ),
        "tar": commands("mkdir kept; tar czf kept/1 tree", "tar czf kept/2 tree", "mkdir back; tar xzf kept/2 -C back"),
        "rsync": commands(
            "mkdir kept; rsync -a tree/ kept/1", "rsync -a --link-dest=../1 tree/ kept/2", "rsync -a kept/2/ back"
        ),
        "restic": commands(
            "restic init -r kept; restic -r kept backup tree",
            "restic -r kept backup tree",
            "restic -r kept restore latest --target back",
        ),
    }
    return {name: steps for name, steps in every.items() if shutil.which(name)}


def measure_snapshots(scratch: Path, files: int) -> dict[str, dict[str, float]]:
    return {
        name: measure_program(scratch, name, files, steps) for name, steps in ({"warmcell": ours()} | peers()).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="workspaces-") as scratch:
        found = measure_snapshots(Path(scratch), arguments.files)
    print(f"| {arguments.files} files | first | after ten changes | back | stored | added by ten changes |")
    print("|---|---|---|---|---|---|")
    for name, row in found.items():
        sizes = f"{row['stored'] / 1e6:.1f} MB | {row['added'] / 1e3:.0f} KB"
        print(f"| {name} | {row['first_s']:.2f} s | {row['after_ten_s']:.2f} s | {row['resume_s']:.2f} s | {sizes} |")
    (arguments.results / "workspaces.json").write_text(
        json.dumps({"files": arguments.files, "snapshots": found}, indent=1)
    )


if __name__ == "__main__":
    main()
