"""What images cost: unpacking beside `tar`, importing, looking up, leasing, exporting, runs in them, and builds.

    python benchmarks/images.py [ROOT.tar] [--rounds 3] [--results DIR]

Run it as an ordinary user. Without a tar it makes a root of 7,000 files and 165 MB, like Debian's. `tar` extracts the
same file on the same file system, in turn with us, and the median of the rounds counts. Python runs are in turn too:
without an image, and in one with the same interpreter. bubblewrap and podman run the same shell in the same root, if
they are installed and work for this user. Prints the figures and writes images.json and images.md.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from warmcell import ExecRequest, ProcessBackend, ProcessConfig
from warmcell.images import ImageStore
from warmcell.images.decompress import LayerReader, decompress
from warmcell.images.limits import Budget, ImageLimits
from warmcell.images.unpack import Unpacker

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.image_roots import make_debian_like

RESULTS = Path(__file__).parent / "results"
#: How long a peer's run may take, and the pause before a run that counts as warm.
SECONDS, PAUSE = 60.0, 0.3
FILES, BYTES = 7_000, 165_000_000


def make_root(path: Path) -> None:
    """Sizes as skewed as those of a real root, content that compresses about as well."""
    chance = random.Random(1)
    sizes = [chance.paretovariate(0.9) for _ in range(FILES)]
    scale = BYTES / sum(sizes)
    words = [chance.randbytes(8) for _ in range(4096)]
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for number, size in enumerate(sizes):
            if number % 10 == 0:
                directory = tarfile.TarInfo(f"usr/share/{number // 100}/{number}")
                directory.type, directory.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(directory)
            entry = tarfile.TarInfo(f"{directory.name}/file-{number}")
            content = b"".join(chance.choices(words, k=int(size * scale) // 8))
            entry.size, entry.mtime = len(content), 1_700_000_000
            archive.addfile(entry, io.BytesIO(content))


def measure(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def processor_seconds(action: Callable[[], object]) -> float:
    """Of this process and its children: what a loaded machine does not change."""
    before = sum(os.times()[:4])
    action()
    return sum(os.times()[:4]) - before


def extract_with_tar(archive: Path, into: Path) -> None:
    into.mkdir()
    command = ["tar", "-xf", archive, "-C", into, "--exclude=./dev/*"]  # an ordinary user cannot make devices
    subprocess.run(command, check=True)


def extract_with_us(archive: Path, into: Path) -> None:
    """The part that `tar` does too; it also computes the digest."""
    into.mkdir()
    budget = Budget(ImageLimits())
    with open(archive, "rb") as stream:
        reader = LayerReader(decompress(stream), budget, os.path.getsize(archive))
        Unpacker(str(into), budget).unpack(reader)
        reader.finish()


def compare_unpacking(archive: Path, place: Path, rounds: int) -> dict[str, float]:
    """Seconds, and processor seconds."""
    found: dict[str, list[float]] = {"tar": [], "warmcell": [], "tar cpu": [], "warmcell cpu": []}
    for number in range(rounds):
        for name, extract in (("tar", extract_with_tar), ("warmcell", extract_with_us)):
            into, began = place / f"{name}-{number}", time.perf_counter()
            found[f"{name} cpu"].append(processor_seconds(lambda e=extract, i=into: e(archive, i)))  # type: ignore[misc]
            found[name].append(time.perf_counter() - began)
            shutil.rmtree(into)
    return {name: statistics.median(times) for name, times in found.items()}


def measure_store(archive: Path, place: Path) -> dict[str, float]:
    store = ImageStore(place / "store")
    found = {"import": measure(lambda: store.import_(archive, "bench"))}
    found["import again"] = measure(lambda: store.import_(archive, "bench"))
    image = store.get("bench")
    found["get"] = statistics.median(measure(lambda: store.get("bench")) for _ in range(200))
    found["lease"] = statistics.median(measure(lambda: store.lease(image).close()) for _ in range(200))
    found["export oci"] = measure(lambda: store.export("bench", place / "out.tar"))
    found["remove"] = measure(lambda: store.remove("bench"))
    return found


def measure_runs(place: Path, rounds: int) -> dict[str, float]:
    """Seconds of one shell command, in an image and without one, in turn. Needs a static busybox."""
    busybox = shutil.which("busybox")
    if busybox is None:
        return {}
    root = place / "busybox"
    (root / "bin").mkdir(parents=True)
    shutil.copy(busybox, root / "bin/sh")
    image = ImageStore(place / "runs").import_(root, "busybox")
    request = ExecRequest("command", "echo hello", 20)
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        for kind, config in (("cold", ProcessConfig(pool_size=0)), ("warm", ProcessConfig(pool_size=2, pool_min=2))):
            for where, given in (("host", None), ("image", image), ("image as root", image)):
                user = "root" if where == "image as root" else None
                backend = stack.enter_context(ProcessBackend(config, image=given, user=user))
                found[f"first {kind} run, {where}"] = [measure(lambda b=backend: b.execute_blocking(request))]  # type: ignore[misc]
                name = f"{kind} run, {where}"
                found[name] = [measure(lambda b=backend: b.execute_blocking(request)) for _ in range(rounds)]  # type: ignore[misc]
    return {name: statistics.median(times) for name, times in found.items()}


def measure_python(place: Path, rounds: int) -> dict[str, float]:
    """Seconds of a Python run, without an image and in one, in turn: at once, and after a pause."""
    (place / "python").mkdir()
    image = make_debian_like(place / "python")
    request = ExecRequest("python", "print(1)", 60)
    found: dict[str, list[float]] = {}
    with ProcessBackend() as host, ProcessBackend(image=image) as inside:
        backends = {"host": host, "image": inside}
        for kind, pause, count in (("first", 0.0, 1), ("next", 0.0, rounds), ("warm", PAUSE, rounds)):
            for _ in range(count):
                for where, backend in backends.items():
                    time.sleep(pause)
                    seconds = measure(lambda b=backend: b.execute_blocking(request))  # type: ignore[misc]
                    found.setdefault(f"{kind} Python run, {where}", []).append(seconds)
    return {name: statistics.median(times) for name, times in found.items()}


def measure_peers(place: Path, rounds: int) -> dict[str, float]:
    """Seconds of the shell command by others, in the root that `measure_runs` made."""
    found: dict[str, float] = {}
    with podman_command(place) as podman:
        bubblewrap = [
            "bwrap",
            "--unshare-all",
            "--bind",
            str(place / "busybox"),
            "/",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
        ]
        for name, command in (("bubblewrap", bubblewrap), ("podman", podman)):
            whole = [*command, "/bin/sh", "-c", "echo hello"]
            if shutil.which(command[0]) is None:
                continue
            trial = subprocess.run(whole, capture_output=True, text=True, check=False, timeout=SECONDS)
            if trial.stdout != "hello\n":
                print(f"{name} does not run here: {trial.stderr.strip()[-200:]}")
                continue
            run = lambda w=whole: subprocess.run(w, capture_output=True, check=True, timeout=SECONDS)  # noqa: E731
            found[f"run, {name}"] = statistics.median(measure(run) for _ in range(rounds))
    return found


@contextmanager
def podman_command(place: Path) -> Iterator[list[str]]:
    """Podman with a home of its own, and a runtime that works without a delegated cgroup."""
    home = place / "podman"
    (home / "run").mkdir(parents=True, mode=0o700)
    runtime = shutil.which("runc", path=os.environ["PATH"] + ":/usr/sbin") or "crun"
    settings = ["--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--runtime", runtime]
    podman = ["env", f"HOME={home}", f"XDG_RUNTIME_DIR={home / 'run'}", "podman", *settings]
    yield [*podman, "run", "--rm", "--network", "none", "--rootfs", str(place / "busybox")]
    if shutil.which("podman"):
        reset = [*podman, "system", "reset", "-f"]
        subprocess.run(reset, capture_output=True, check=False, timeout=SECONDS)


def write_table(path: Path, figures: dict[str, dict[str, float]], size: int, load: str) -> None:
    """For readers; images.json has the same figures."""
    lines = ["# Images", "", "Written by `python benchmarks/images.py`, as an ordinary user."]
    lines += [f"{os.cpu_count()} processors, Linux {os.uname().release}; load average at start and end: {load}.", ""]
    lines += ["| what | ms |", "|---|---:|"]
    for kind, times in figures.items():
        for name, seconds in times.items():
            what = f"{kind}, {name}" if kind.startswith("unpack") else name
            rate = f" ({size / seconds / 1e6:.0f} MB/s)" if what.endswith(("tar", "warmcell")) else ""
            lines.append(f"| {what}{rate} | {seconds * 1000:.2f} |")
    python = figures["python"]
    ratio = python["warm Python run, image"] / python["warm Python run, host"]
    lines += [
        "",
        f"A warm Python run in an image takes {ratio:.2f} times as long as one without. Before it the backend was",
    ]
    lines += [f'idle for {PAUSE:g} s; "next" runs follow each other at once.', ""]
    path.write_text("\n".join(lines))


def measure_builds(place: Path, archive: Path) -> dict[str, float]:
    """Seconds of a build on top of the root: a command that changes nothing, files copied, and files written."""
    store = ImageStore(place / "builds")
    root, busybox = place / "root-for-builds", shutil.which("busybox")
    if busybox is None:
        return {}
    extract_with_tar(archive, root)
    (root / "bin").mkdir(exist_ok=True)
    shutil.copy(busybox, root / "bin/sh")
    store.import_(root, "base")
    context = place / "context"
    shutil.copytree(root / "bin", context / "bin")
    loop = "i=0; while [ $i -lt 1000 ]; do echo $i > /made-$i; i=$((i+1)); done"
    for name, line in (("nothing", "RUN :"), ("copy", "COPY bin /copied"), ("1000 files", f"RUN {loop}")):
        (context / name).write_text(f"FROM base\n{line}\n")
    found = {}
    for name in ("nothing", "copy", "1000 files"):
        found[f"build, {name}"] = measure(lambda n=name: store.build(context, n, name="built"))  # type: ignore[misc]
        found[f"build, {name}, cached"] = measure(lambda n=name: store.build(context, n, name="built"))  # type: ignore[misc]
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("archive", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.home()) as temporary:
        place = Path(temporary)
        archive = arguments.archive or place / "root.tar"
        if arguments.archive is None:
            make_root(archive)
        packed = place / "root.tar.gz"
        packed.write_bytes(gzip.compress(archive.read_bytes(), 1))
        size = archive.stat().st_size
        figures: dict[str, dict[str, float]] = {}
        load = f"{os.getloadavg()[0]:.1f}"
        for name, path in (("tar", archive), ("tar.gz", packed)):
            times = compare_unpacking(path, place, arguments.rounds)
            figures[f"unpack {name}"] = times
            for who in ("tar", "warmcell"):
                rate = f"{times[who]:6.2f} s {size / times[who] / 1e6:5.0f} MB/s, processor {times[f'{who} cpu']:.2f} s"
                print(f"unpack {name:6}  {who:8} {rate}", flush=True)
        figures["store"] = store = measure_store(archive, place)
        for name, seconds in store.items():
            print(f"{name:13} {seconds * 1000:10.2f} ms")
        figures["runs"] = runs = measure_runs(place, 50 * arguments.rounds)
        for name, seconds in runs.items():
            print(f"{name:32} {seconds * 1000:8.2f} ms")
        figures["python"] = measure_python(place, 30 * arguments.rounds)
        figures["peers"] = measure_peers(place, 10 * arguments.rounds)
        for name, seconds in (figures["python"] | figures["peers"]).items():
            print(f"{name:32} {seconds * 1000:8.2f} ms")
        figures["builds"] = builds = measure_builds(place, archive)
        for name, seconds in builds.items():
            print(f"{name:32} {seconds * 1000:8.2f} ms")
        arguments.results.mkdir(exist_ok=True)
        (arguments.results / "images.json").write_text(json.dumps({"bytes": size} | figures, indent=1) + "\n")
        write_table(arguments.results / "images.md", figures, size, f"{load} and {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
