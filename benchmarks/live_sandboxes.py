"""The cost of live sandboxes, beside the usual alternatives, interleaved in the same process.

    python benchmarks/live_sandboxes.py [--quick]

Run it as an ordinary user. Writes benchmarks/results/living.json and living.md. ipykernel is left out if it is not
installed (`pip install -r benchmarks/requirements.txt`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from live_sandboxes_report import Figure, host, write
from repls import BareRepl, JupyterKernel, OurSession, Repl

from warmcell import AsyncSandbox, Limits, ProcessBackend, Sandbox

WORDS = ["/bin/echo", "x"]
CELLS = ("x += 1", "x + 1", "print('hello')")
#: Pours as many bytes as the eight that it is sent say.
POURER = """
import socket, struct
listener = socket.create_server(("127.0.0.1", {port}), backlog=256)
print(listener.getsockname()[1], flush=True)
piece = bytes(1 << 18)
while True:
    connection, _ = listener.accept()
    with connection:
        left = struct.unpack("!q", connection.recv(8, socket.MSG_WAITALL))[0]
        while left > 0:
            left -= connection.send(piece[:left])
"""
DRINKER = """
import socket, sys, time
left = size = int(sys.argv[2])
buffer = bytearray(1 << 18)
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    began = time.perf_counter()
    connection.sendall(size.to_bytes(8, "big"))
    while left:
        count = connection.recv_into(buffer)
        assert count, f"the connection ended {left} bytes early"
        left -= count
    print(size / (1 << 20) / (time.perf_counter() - began))
"""


def median_ms(ways: dict[str, Callable[[], object]], rounds: int, in_a_row: int = 1) -> dict[str, float]:
    """Alternate, so that noise on the host affects all alike; several in a row, so that caches are warm."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds // in_a_row):
        for name, call in ways.items():
            for _ in range(in_a_row):
                began = time.perf_counter()
                call()
                taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) * 1000 for name, times in taken.items()}


# ---- sessions ----


def peers() -> dict[str, Callable[[], Repl]]:
    found: dict[str, Callable[[], Repl]] = {"bare python3 -i": BareRepl}
    try:
        JupyterKernel().close()
        found["ipykernel"] = JupyterKernel
    except ImportError:
        print("ipykernel is not installed and is left out", file=sys.stderr)
    return found


def session_start(sandbox: Sandbox, rounds: int) -> Iterator[Figure]:
    """From the call to the result of the first cell."""
    ways = {"session, in a live cage": lambda: OurSession(sandbox).close()}
    ways |= {name: lambda make=make: make().close() for name, make in peers().items()}
    yield from compare("session start", median_ms(ways, rounds), "bare python3 -i")


def round_trips(sandbox: Sandbox, rounds: int) -> Iterator[Figure]:
    repls: dict[str, Repl] = {"session": OurSession(sandbox)}
    repls |= {name: make() for name, make in peers().items()}
    for repl in repls.values():
        repl.run("x = 1")
    for cell in CELLS:
        ways = {name: lambda repl=repl, cell=cell: repl.run(cell) for name, repl in repls.items()}
        times = median_ms(ways, rounds, in_a_row=20)
        yield from compare(f"cell: {cell}", times, "bare python3 -i", goals={"session": 3.0})
    for repl in repls.values():
        repl.close()


# ---- processes ----


def bare() -> None:
    with subprocess.Popen(WORDS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.communicate()


def bare_first_byte() -> None:
    with subprocess.Popen(WORDS, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1)


def processes(sandbox: Sandbox, rounds: int) -> Iterator[Figure]:
    ways: dict[str, Callable[[], object]] = {"spawn": lambda: sandbox.spawn(WORDS).wait(), "bare subprocess": bare}
    yield from compare("process, to its end", median_ms(ways, rounds), "bare subprocess", goals={"spawn": 2.0})
    ways = {"spawn": lambda: next(sandbox.spawn(WORDS).output()), "bare subprocess": bare_first_byte}
    yield from compare("process, first byte", median_ms(ways, rounds), "bare subprocess")


def time_first_line(sandbox: Sandbox, rounds: int) -> Iterator[Figure]:
    """The time to the first line of a program that prints and keeps running."""

    def hear(began: float) -> float:
        heard: list[float] = []
        sandbox.sh("echo x; sleep 0.05", on_stdout=lambda text: heard.append(time.perf_counter()))
        return (heard[0] - began) * 1000

    def hear_bare(began: float) -> float:
        with subprocess.Popen(["sh", "-c", "echo x; sleep 0.05"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            os.read(process.stdout.fileno(), 1)
            return (time.perf_counter() - began) * 1000

    times = [(hear(time.perf_counter()), hear_bare(time.perf_counter())) for _ in range(rounds)]
    ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    figures = {"sandbox.sh(on_stdout=...)": ours, "bare subprocess": theirs}
    yield from compare("streamed output, first byte", figures, "bare subprocess")


# ---- ports ----


def time_bulk_output(port: int, size: int) -> float:
    """MB per second into a separate process: ours has the port to relay."""
    got = subprocess.run([sys.executable, "-c", DRINKER, str(port), str(size)], stdout=subprocess.PIPE, check=True)
    return float(got.stdout)


def time_response(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall((1).to_bytes(8, "big"))
        assert connection.recv(1)


def ports(sandbox: Sandbox, size: int, rounds: int) -> Iterator[Figure]:
    bare_server = subprocess.Popen([sys.executable, "-c", POURER.format(port=0)], stdout=subprocess.PIPE, text=True)
    assert bare_server.stdout is not None
    direct = int(bare_server.stdout.readline())
    server = sandbox.spawn(["python3", "-c", POURER.format(port=8000)])
    next(server.output())
    try:
        with sandbox.expose(8000) as exposed:
            rates = [(time_bulk_output(exposed.port, size), time_bulk_output(direct, size)) for _ in range(rounds)]
            ways = {
                "exposed port": lambda: time_response(exposed.port),
                "direct loopback": lambda: time_response(direct),
            }
            connections = median_ms(ways, rounds * 20)
    finally:
        bare_server.kill()
        bare_server.communicate()
        server.kill()
    ours, theirs = (statistics.median(column) for column in zip(*rates, strict=True))
    for name, rate in (("exposed port", ours), ("direct loopback", theirs)):
        yield Figure("port, one connection", name, rate, "MB/s", rate / theirs)
    yield from compare("port, a connection", connections, "direct loopback")


# ---- forks and many at once ----


def forks(rounds: int) -> Iterator[Figure]:
    """From the call to a branch that has answered its first cell."""
    for megabytes in (0, 100, 500):
        with Sandbox(forkable=True, timeout=120, limits=Limits(memory_mb=2048)) as sandbox:
            session = sandbox.session("python")
            session.run(f"data = bytes({megabytes} << 20)")
            times = []
            for _ in range(rounds):
                began = time.perf_counter()
                branch = session.fork()
                branch.run("0")
                times.append((time.perf_counter() - began) * 1000)
                branch.sandbox.destroy()
        yield Figure("fork of a session", f"{megabytes} MB of variables", statistics.median(times), "ms")


def memory_of(pids: list[int]) -> float:
    """Proportional set size in MB."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            total += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total / 1024


async def at_once(count: int) -> list[Figure]:
    """Live sandboxes of one backend, each with a running program."""
    backend = ProcessBackend()
    began = time.perf_counter()
    sandboxes = [AsyncSandbox(backend=backend) for _ in range(count)]
    started = [await sandbox.spawn("sleep 1000") for sandbox in sandboxes]
    taken = time.perf_counter() - began
    agents = [(await sandbox._driver.live.start_cage()).pid for sandbox in sandboxes]
    memory, running = memory_of(agents) / count, sum(process.is_running for process in started)
    began = time.perf_counter()
    for sandbox in sandboxes:
        await sandbox.destroy()
    await backend.aclose()
    if running != count:
        raise SystemExit(f"{count - running} of {count} programs have ended by themselves")
    part = f"{count} live sandboxes at once"
    return [
        Figure(part, "made, with a program in each", taken, "s"),
        Figure(part, "memory of one", memory, "MB"),
        Figure(part, "all ended", time.perf_counter() - began, "s"),
    ]


def compare(
    part: str, figures: dict[str, float], base: str, unit: str = "ms", goals: dict[str, float] | None = None
) -> Iterator[Figure]:
    for name, value in figures.items():
        yield Figure(part, name, value, unit, value / figures[base], (goals or {}).get(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    quick = options.quick
    figures: list[Figure] = []
    with Sandbox(timeout=600) as sandbox:
        sandbox.spawn(["true"]).wait()
        figures += session_start(sandbox, 3 if quick else 15)
        figures += round_trips(sandbox, 100 if quick else 2000)
        figures += processes(sandbox, 20 if quick else 200)
        figures += time_first_line(sandbox, 5 if quick else 40)
        figures += ports(sandbox, (64 if quick else 512) << 20, 2 if quick else 7)
    figures += forks(2 if quick else 10)
    figures += asyncio.run(at_once(10 if quick else 100))
    return write(figures, host(), None if quick else options.results)


if __name__ == "__main__":
    raise SystemExit(main())
