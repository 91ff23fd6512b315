"""The cost of forking a session, by its memory size, of sessions of a checkpoint, and of many branches at once.

    python benchmarks/forking.py [--quick]

Run it as an ordinary user. A fork is timed from the call to a branch that has answered its first cell.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack

from warmcell import Limits, Sandbox, Session

MEGABYTES = (0, 100, 500)
#: A buffer that pickle keeps apart, as numpy's arrays do.
BUFFER = """
import pickle
class Buffer:
    def __init__(self, data): self.data = data
    def __reduce_ex__(self, protocol): return Buffer, (pickle.PickleBuffer(self.data),)
data = Buffer(bytearray({megabytes} << 20))
"""


def time_fork(session: Session) -> tuple[float, Session]:
    start = time.perf_counter()
    branch = session.fork()
    branch.run("0")
    return (time.perf_counter() - start) * 1e3, branch


def by_size(rounds: int) -> None:
    print("| variables | fork, ms: lowest | median | highest |\n|---|---|---|---|")
    for megabytes in MEGABYTES:
        with Sandbox(forkable=True, timeout=120, limits=Limits(memory_mb=2048)) as sandbox:
            session = sandbox.session("python")
            session.run(f"data = bytes({megabytes} << 20)")
            times = []
            for _ in range(rounds):
                took, branch = time_fork(session)
                branch.sandbox.destroy()
                times.append(took)
        print(f"| {megabytes} MB | {min(times):.0f} | {statistics.median(times):.0f} | {max(times):.0f} |", flush=True)


def time_checkpoint(megabytes: int, rounds: int, *, keep: bool) -> list[float]:
    """Sessions of one checkpoint, until each has answered a cell, in ms. `keep`: the earlier ones stay open."""
    with Sandbox(forkable=True, timeout=120, limits=Limits(memory_mb=2048)) as sandbox, ExitStack() as branches:
        session = sandbox.session("python")
        session.run(BUFFER.format(megabytes=megabytes))
        times = []
        with session.checkpoint() as checkpoint:
            for _ in range(rounds):
                start = time.perf_counter()
                branch = checkpoint.session()
                branch.run("0")
                times.append((time.perf_counter() - start) * 1e3)
                branches.enter_context(branch.sandbox) if keep else branch.sandbox.destroy()
        return times


def from_checkpoint(rounds: int) -> None:
    """The first session of each is left out: the next one is prepared while its caller uses the last."""
    print("\n| buffers | session of a checkpoint, ms: lowest | median | highest |\n|---|---|---|---|")
    for megabytes in MEGABYTES:
        for keep in (False, True):
            times = time_checkpoint(megabytes, rounds + 1, keep=keep)[1:]
            name = f"{megabytes} MB, {'all kept open' if keep else 'one after the other'}"
            print(f"| {name} | {min(times):.0f} | {statistics.median(times):.0f} | {max(times):.0f} |", flush=True)


def at_once(count: int) -> None:
    with Sandbox(forkable=True, timeout=120) as sandbox, ExitStack() as branches:
        session = sandbox.session("python")
        session.run("rows = list(range(100_000))")
        before, start = available_mb(), time.perf_counter()
        for _ in range(count):
            branches.enter_context(session.fork().sandbox)
        took, used = time.perf_counter() - start, before - available_mb()
    print(f"\n{count} branches at once: {took:.1f} s, {used / count:.0f} MB of the machine each")


def available_mb() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("MemAvailable")) // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    by_size(2 if quick else 10)
    from_checkpoint(2 if quick else 10)
    at_once(10 if quick else 100)


if __name__ == "__main__":
    main()
