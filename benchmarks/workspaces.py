"""What workspaces cost: snapshots of 10,000 files, first and after ten changes, and resuming, beside other programs.
And sessions of a checkpoint with 500 MB of buffers.

    python benchmarks/workspaces.py [--files 10000] [--sessions 100] [--results DIR]

Run it as an ordinary user. Every program works on the same tree and file system; the table says which do not work
here. Prints the tables and writes workspaces.json and workspaces.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import shlex
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forking import time_checkpoint

from warmcell.workspaces import WorkspaceStore

RESULTS = Path(__file__).parent / "results"
CHANGES = 10
MEGABYTES = 500
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


def measure_program(scratch: Path, name: str, files: int, steps: Steps) -> dict[str, Any]:
    """`steps` get the directory of the program, which has the tree below `tree`. Or the reason why it does not work."""
    try:
        return time_steps(scratch / name.replace(" ", "-"), files, steps)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or b"").decode("utf-8", "replace").strip().splitlines()
        return {"does_not_work": lines[-1] if lines else f"exit status {error.returncode}"}


def time_steps(place: Path, files: int, steps: Steps) -> dict[str, Any]:
    make_tree(place / "tree", files)
    time.sleep(0.2)  # files that were just written are read again by programs that compare times
    first = measure(lambda: steps[0](place))
    before = size_of(place / "kept")
    change(place / "tree", files)
    second = measure(lambda: steps[1](place))
    added = size_of(place / "kept") - before
    back = measure(lambda: steps[2](place))
    subprocess.run(["chmod", "-R", "u+w", place], check=True)  # podman's layers are read-only
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
        return lambda place: subprocess.run(["sh", "-ec", line], cwd=place, env=env, check=True, capture_output=True)

    first, second, back = lines
    return step(first), step(second), step(back)


def podman(scratch: Path) -> Steps:
    """A container that has the tree: its file system is a directory, of which `commit` makes a layer.

    Without overlay (`vfs`), as every layer is then a plain directory for any user.
    """
    place = shlex.quote(str(scratch / "podman-commit"))
    run = f"podman --root {place}/kept --runroot {place}/run --storage-driver vfs"
    run += " --cgroup-manager cgroupfs --events-backend file"
    # `migrate` ends the process that keeps podman's user namespace.
    begin = f"export XDG_RUNTIME_DIR={place}/run; trap '[ $? = 0 ] || {run} system migrate' EXIT"
    fill = f"""
        mkdir run; tar cf - -T /dev/null | {run} import - empty; {run} create --name work empty true
        mounted=$({run} unshare {run} mount work); chmod u+w "$mounted"
        mv tree "$mounted/tree"; ln -s "$mounted/tree" tree
    """
    return commands(
        f"{begin}; {fill} {run} commit work one",
        f"{begin}; {run} commit work two",
        f"{begin}; {run} create two true; {run} system migrate",
    )


def peers(scratch: Path) -> dict[str, Steps]:
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
        "podman commit": podman(scratch),
    }
    return every


def measure_snapshots(scratch: Path, files: int) -> dict[str, dict[str, Any]]:
    found = {}
    for name, steps in ({"warmcell": ours()} | peers(scratch)).items():
        is_there = name == "warmcell" or shutil.which(name.split()[0])
        found[name] = measure_program(scratch, name, files, steps) if is_there else {"does_not_work": "not installed"}
    return found


def snapshot_table(files: int, found: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        f"| {files} files | first | after ten changes | back | stored | added by ten changes |",
        "|---|" + "---:|" * 5,
    ]
    for name, row in found.items():
        if "does_not_work" in row:
            lines.append(f"| {name} | does not work here: {row['does_not_work']} | | | | |")
            continue
        sizes = f"{row['stored'] / 1e6:.1f} MB | {row['added'] / 1e3:.0f} KB"
        times = " | ".join(f"{row[step]:.2f} s" for step in ("first_s", "after_ten_s", "resume_s"))
        lines.append(f"| {name} | {times} | {sizes} |")
    return lines


def measure_checkpoint(count: int) -> dict[str, list[float]]:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a session takes about twenty descriptors of this program
    ways = {"one after the other": False, "all kept open": True}
    return {name: time_checkpoint(MEGABYTES, count, keep=keep) for name, keep in ways.items()}


def checkpoint_table(found: dict[str, list[float]]) -> list[str]:
    lines = [f"| sessions of a checkpoint of {MEGABYTES} MB, ms | first | lowest of the others | median | highest |"]
    lines.append("|---|" + "---:|" * 4)
    for name, (first, *others) in found.items():
        shown = (first, min(others), statistics.median(others), max(others))
        lines.append(f"| {len(others) + 1}, {name} | " + " | ".join(f"{value:.0f}" for value in shown) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    load = f"{os.getloadavg()[0]:.1f}"
    checkpoint = measure_checkpoint(arguments.sessions)
    with tempfile.TemporaryDirectory(prefix="workspaces-") as scratch:
        found = measure_snapshots(Path(scratch), arguments.files)
    load += f" and {os.getloadavg()[0]:.1f}"
    machine = f"{os.cpu_count()} processors, Linux {platform.release()}; load average at start and end: {load}."
    tables = [*snapshot_table(arguments.files, found), "", *checkpoint_table(checkpoint), ""]
    print("\n".join([machine, "", *tables]))
    command = f"python benchmarks/workspaces.py --files {arguments.files} --sessions {arguments.sessions}"
    page = ["# Workspaces", "", f"Written by `{command}`, as an ordinary user.", machine, "", *tables]
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "workspaces.md").write_text("\n".join(page))
    report = {"files": arguments.files, "load": load, "snapshots": found, "checkpoint_ms": checkpoint}
    (arguments.results / "workspaces.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
