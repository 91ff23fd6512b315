"""What living sandboxes cost: a process in the live cage against bare `subprocess`, and a hundred of them at once.

    python benchmarks/living.py [--rounds 200] [--sandboxes 100]

Run it as an ordinary user. Bare and live take turns in the same process, so that both meet the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import time
from collections.abc import Callable

from warmcell import AsyncProcess, AsyncSandbox, ProcessBackend, Sandbox, SandboxError

WORDS = ["/bin/echo", "x"]


def median_ms(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) * 1000 for name, times in taken.items()}


def bare() -> None:
    with subprocess.Popen(WORDS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.communicate()


def bare_first_byte() -> None:
    with subprocess.Popen(WORDS, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1)


def first_byte(sandbox: Sandbox) -> None:
    next(sandbox.spawn(WORDS).output())


def processes(rounds: int) -> None:
    with Sandbox() as sandbox:
        began = time.perf_counter()
        sandbox.spawn(WORDS).wait()
        first = (time.perf_counter() - began) * 1000
        calls: dict[str, Callable[[], object]] = {
            "bare subprocess, to its end": bare,
            "spawn, to its end": lambda: sandbox.spawn(WORDS).wait(),
            "bare subprocess, first byte": bare_first_byte,
            "spawn, first byte": lambda: first_byte(sandbox),
        }
        figures = median_ms(calls, rounds)
    print(f"{'first spawn, which makes the live cage':42}{first:9.2f} ms")
    for name, figure in figures.items():
        print(f"{name:42}{figure:9.2f} ms")
    ratio = figures["spawn, to its end"] / figures["bare subprocess, to its end"]
    print(f"{'spawn against bare':42}{ratio:9.2f} x")


def memory_of(pids: list[int]) -> float:
    """MiB that are theirs, shared pages divided among who shares them."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            total += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total / 1024


async def failure(process: AsyncProcess) -> str:
    try:
        return str(await process.wait())
    except SandboxError as error:
        return str(error)


async def many(count: int) -> None:
    """Of one backend, as a program that serves many would have them."""
    backend = ProcessBackend()
    began = time.perf_counter()
    sandboxes = [AsyncSandbox(backend=backend) for _ in range(count)]
    started = [await sandbox.spawn("sleep 1000") for sandbox in sandboxes]
    taken = time.perf_counter() - began
    agents = [(await sandbox._live_cage()).pid for sandbox in sandboxes]
    print(f"{f'{count} sandboxes with a process each':42}{taken:9.2f} s")
    print(f"{'memory of their agents, each':42}{memory_of(agents) / count:9.2f} MiB")
    print(f"{'processes that still run':42}{sum(process.is_running for process in started):9}")
    for error in [await failure(process) for process in started if not process.is_running]:
        print(f"ended: {error}")
    began = time.perf_counter()
    for sandbox in sandboxes:
        await sandbox.destroy()
    await backend.aclose()
    print(f"{'their end':42}{time.perf_counter() - began:9.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--sandboxes", type=int, default=100)
    arguments = parser.parse_args()
    processes(arguments.rounds)
    asyncio.run(many(arguments.sandboxes))


if __name__ == "__main__":
    main()
