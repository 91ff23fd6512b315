"""Warmcell beside other sandboxes: what a run costs, what it leaves, and which attacks it stops.

    python benchmarks/peers.py [--tools DIRECTORY] [--rounds 20] [--quick] [--results DIRECTORY]

Run it as an ordinary user. It writes peers.json, peers.md and peers.svg to benchmarks/results. Peers that are missing
or do not start are listed with the reason. All of them:

    apt-get install bubblewrap firejail podman crun runc uidmap ripgrep socat
    pip install -r benchmarks/requirements.txt
    npm install --prefix DIRECTORY @anthropic-ai/sandbox-runtime @openai/codex pyodide deno
    GOBIN=DIRECTORY/bin go install gvisor.dev/gvisor/runsc@go

Every peer runs the same programs with the same Python (Pyodide with its own). Temporary files and the home are in a
directory of the benchmark, so that leftovers can be counted.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

from load import descendants
from peer_attacks import SECONDS, Canaries, attacks
from peer_commands import PATIENCE, Peer, Places, find_peers
from peers_report import Row, write

from warmcell.diagnosis.bench import Case, figures, measure

HELLO = "print(6*7)"
CALLERS = 8
PR_SET_CHILD_SUBREAPER = 36
#: Peers whose start takes seconds of processor time: what needs many runs uses their warm ones.
SLOW = "Pyodide"
IDLE = "import time; print('READY', flush=True); time.sleep(600)"


def say(text: str) -> None:
    print(text, flush=True)


def time_runs(peers: list[Peer], rounds: int) -> dict[str, tuple[float, float]]:
    """Medians in milliseconds, and ratios to bare, of interleaved runs; slow starts in fewer rounds."""
    cases = {peer.name: Case(peer.name, lambda peer=peer: peer.start(HELLO, 60)) for peer in peers}
    slow = [case for case in cases.values() if case.name.startswith(SLOW)]
    fast = [case for case in cases.values() if case not in slow]
    kept = [peer for peer in peers if peer.warm]
    fast += [Case(f"{peer.name}, warm", lambda peer=peer: peer.warm(HELLO, 60), pause) for peer in kept]
    bare = fast[0].name
    found = figures(measure(fast, rounds), bare)
    if slow:
        found = [*figures(measure([fast[0], *slow], max(1, rounds // 10)), bare), *found]
    return {row.name: (row.p50, row.ratio) for row in found}


def pause() -> None:
    """What a peer prepares for the next run is ready by then."""
    time.sleep(0.1)


def count_leftovers(places: Places) -> tuple[int, int, int]:
    """Processes (orphans are adopted by this one), files in the home and the temporary directory, and mounts."""
    reap()
    files = sum(len(names) for place in (places.home, places.scratch / "tmp") for _, _, names in os.walk(place))
    return len(descendants(os.getpid())), files, len(Path("/proc/self/mountinfo").read_text().splitlines())


def reap() -> None:
    """Adopted orphans that have ended would count as processes."""
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2] == ["Z", str(os.getpid())]:
                os.waitpid(pid, os.WNOHANG)


def run_many(row: Row, peer: Peer, most: int, seconds: float, places: Places) -> None:
    """Runs from eight callers until `most` or the time is reached, and what they leave."""
    action = peer.warm or peer.start
    action(HELLO, 60)
    before = count_leftovers(places)
    started, lock, numbers = time.monotonic(), threading.Lock(), iter(range(most))

    def call(_: int) -> None:
        while time.monotonic() < started + seconds:
            with lock:
                if next(numbers, None) is None:
                    return
            is_right = "42" in action(HELLO, 60)
            with lock:
                row.runs += 1
                row.failed_runs += not is_right

    with ThreadPoolExecutor(CALLERS) as threads:
        list(threads.map(call, range(CALLERS)))
    row.runs_per_second = round(row.runs / (time.monotonic() - started), 1)
    end = time.monotonic() + 10  # what ends by itself shortly after a run is not left
    while (after := count_leftovers(places)) > before and time.monotonic() < end:
        time.sleep(0.2)
    row.left_processes, row.left_files, row.left_mounts = (
        max(0, now - then) for now, then in zip(after, before, strict=True)
    )


def measure_idle(peer: Peer) -> float | None:
    """Proportional memory, in MB, of all processes of a sandbox whose guest waits. None if the kernel hides one."""
    if peer.idle is None:
        return None
    before = set(descendants(os.getpid()))
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(peer.idle(IDLE), stdin=null, stdout=pipe, stderr=null) as process:
        assert process.stdout is not None
        timer = threading.Timer(PATIENCE, process.kill)
        timer.start()
        is_ready = b"READY" in process.stdout.readline()
        timer.cancel()
        own = set(descendants(os.getpid())) - before
        try:
            return round(sum(map(proportional_memory, own)) / 1e6, 1) if is_ready else None
        except PermissionError:
            return None
        finally:
            end_all(own)


def proportional_memory(pid: int) -> int:
    try:
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has ended
    return next((int(row.split()[1]) * 1024 for row in rows if row.startswith("Pss:")), 0)


def end_all(pids: set[int]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, number)
        time.sleep(0.5)


def attack(row: Row, peer: Peer, canaries: Canaries) -> None:
    action = peer.warm if peer.warm and peer.name.startswith(SLOW) else peer.start
    for name, program, check, is_limit in attacks(canaries):
        said = action(program, SECONDS if name.startswith("spins") else 60)
        reached = check() if check else "REACHED" in said
        row.stopped[name] = not reached if reached or is_limit or "READY" in said else None
    say(f"{peer.name}: stopped {sum(map(bool, row.stopped.values()))} of {len(row.stopped)}")


def measure_all(places: Places, rounds: int, runs: int, seconds: float) -> tuple[list[Row], dict[str, str]]:
    with ExitStack() as stack:
        found = list(find_peers(places, stack))
        peers = [peer for peer in found if isinstance(peer, Peer)]
        missing = dict(item for item in found if not isinstance(item, Peer))
        for name, reason in missing.items():
            say(f"{name} is left out: {reason}")
        rows = [Row(peer.name, peer.version) for peer in peers]
        canaries = stack.enter_context(Canaries(places.home))
        for row, peer in zip(rows, peers, strict=True):
            attack(row, peer, canaries)
        times = time_runs(peers, rounds)
        for row, peer in zip(rows, peers, strict=True):
            row.start_ms, row.start_ratio = times[peer.name]
            row.warm_ms, row.warm_ratio = times.get(f"{peer.name}, warm", (None, None))
            row.idle_mb = measure_idle(peer)
            run_many(row, peer, runs, seconds, places)
            say(f"{peer.name}: start {row.start_ms} ms, {row.runs_per_second} runs a second, {row.runs} runs")
    return rows, missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=Path, default=Path("build/peers"), help="where npm and Go installed the peers")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=1000, help="runs whose leftovers are counted")
    parser.add_argument("--seconds", type=float, default=60, help="the most that these runs may take for each peer")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    part = 10 if options.quick else 1
    load = os.getloadavg()[0]  # of other programs
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans of the sandboxes come to this process
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as directory:
        scratch = Path(directory)
        for name, variable in {"home": "HOME", "tmp": "TMPDIR", "run": "XDG_RUNTIME_DIR"}.items():
            (scratch / name).mkdir(mode=0o700)
            os.environ[variable] = str(scratch / name)
        places = Places(options.tools.resolve(), scratch)
        rows, missing = measure_all(
            places, max(3, options.rounds // part), options.runs // part, options.seconds / part
        )
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "user": "root" if os.geteuid() == 0 else "ordinary user",
        "processors": str(os.cpu_count()),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "load": f"{load:.1f}",
    }
    write(rows, missing, about, options.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
