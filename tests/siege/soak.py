"""Many runs, some of them hostile, by many callers: is everything afterwards as it was? `scripts/soak` by hand.

They are runs in cages of their own, commands in live cages, cells of sessions, and requests to a server, in turn.

Each hostile program is finite and touches nothing but itself: were the cage broken, it would end on its own.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.contract.processes import alive, descendants
from tests.helpers import eventually
from tests.siege.soak_places import LIMITS, Cells, Doors, LiveCage, Wrong, running_server

from warmcell import ExecRequest, ExecutionTimeout, MemoryExceeded, ProcessBackend, Sandbox
from warmcell.runner.cgroup_parent import group_parent

_MIB = 1 << 20
#: What a host program may grow by between the first tenth of the runs and the last, and for each caller.
_GROWTH_MIB, _GROWTH_PER_CALLER_MIB = 32, 1
#: The C library else keeps memory for each of many threads, eight times as many as there are processors.
_M_ARENA_MAX, _ARENAS = -8, 2
_BENIGN = {
    "python": ("python", "import json; print(json.dumps([6 * 7]))", "[42]\n"),
    "shell": ("command", "echo $((6 * 7)) | cat", "42\n"),
    "reader": ("python", "import sys; print(len(sys.stdin.read()))", "5\n"),
}
_HOSTILE = {
    "fork bomb": "import os, time\nfor _ in range(300):\n    os.fork() or (time.sleep(30), os._exit(0))",
    "daemon": "import os, time\nif not os.fork():\n    os.setsid()\n    os.fork() or time.sleep(60)\n    os._exit(0)\nprint('left')",
    "flood": "import os\nfor _ in range(400):\n    os.write(1, b'x' * 65536); os.write(2, b'y' * 4096)",
    "memory": "kept = [bytearray(b'm' * (8 << 20)) for _ in range(60)]",
    "deep tree": "import os\nfor _ in range(1500):\n    os.mkdir('d'); os.chdir('d')\nos.chmod('.', 0)",
    "many files": "for number in range(3000):\n    open(f'/tmp/{number}', 'w').close()",
    "kill init": "import os, signal\nfor number in (1, -1):\n    for what in (9, 15, 2):\n        try:\n            os.kill(number, what)\n        except OSError:\n            pass",
    "kill itself": "import os\nos.kill(os.getpid(), 9)",
    "descriptors": "import os\nkept = []\ntry:\n    while len(kept) < 5000:\n        kept.append(os.pipe())\nexcept OSError:\n    pass",
    "endless": "while True:\n    pass",
    "stopped": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "threads": "import threading, time\nfor _ in range(100):\n    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()",
}
#: Those that end by their deadline and no other way.
_SECONDS = {"endless": 1.0, "stopped": 1.0}


@dataclass(frozen=True)
class Belongings:
    """What there is of ours on the host."""

    descriptors: int
    processes: int
    threads: int
    mounts: int
    groups: int
    temporary: tuple[str, ...]

    @classmethod
    def now(cls) -> Belongings:
        gc.collect()
        return cls(
            descriptors=len(os.listdir("/proc/self/fd")),
            processes=len(alive(descendants())),
            threads=threading.active_count(),
            mounts=len(Path("/proc/self/mountinfo").read_text().splitlines()),
            groups=_groups(),
            temporary=tuple(sorted(name for name in os.listdir(tempfile.gettempdir()) if "warmcell" in name)),
        )

    def is_no_more_than(self, before: Belongings, idle_threads: int = 0) -> bool:
        """But for threads of the one executor that all sandboxes share, which wait for the next."""
        same = replace(self, threads=before.threads, processes=before.processes)
        is_all_there = self.threads <= before.threads + idle_threads and self.processes <= before.processes
        return same == before and is_all_there


def _groups() -> int:
    parent = group_parent()
    bases = set(parent.directories.values()) if parent else set()
    return sum(entry.name.startswith("warmcell-") for base in bases for entry in os.scandir(base))


def resident_mib(*others: int) -> int:
    """Of this process and of those that serve it all the time. Without memory that is free and not yet returned."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in (os.getpid(), *others))
    return pages * os.sysconf("SC_PAGE_SIZE") // _MIB


class Runs:
    """Runs in cages of their own."""

    hostile = tuple(_HOSTILE)

    def __init__(self, backend: ProcessBackend) -> None:
        self._backend = backend

    def step(self, number: int) -> None:
        language, code, wanted = list(_BENIGN.values())[number % len(_BENIGN)]
        result = self._backend.execute_blocking(ExecRequest(language, code, 60, b"input"))  # type: ignore[arg-type]
        if (result.stdout, result.exit_code) != (wanted, 0):
            raise Wrong(str(result))

    def attack(self, name: str) -> str:
        try:
            if name == "deep tree":  # what it leaves in its work directory is the host's to remove
                with Sandbox(timeout=60) as sandbox:
                    return str(sandbox.run(_HOSTILE[name]).exit_code)
            request = ExecRequest("python", _HOSTILE[name], _SECONDS.get(name, 20.0), limits=LIMITS)  # type: ignore[arg-type]
            return str(self._backend.execute_blocking(request).exit_code)
        except (ExecutionTimeout, MemoryExceeded) as limit:
            return type(limit).__name__

    def close(self) -> None:
        pass


PLACES = ("runs", "live", "cells", "doors")
Place = Runs | LiveCage | Cells | Doors


class Soak:
    """So many steps by so many threads, in turn at each of these places; every tenth step there is hostile.

    `seed` says with which program the round begins. `wrong` lists wrong outcomes.
    """

    def __init__(self, runs: int, callers: int, seed: int, places: Sequence[str], url: str = "") -> None:
        self.ends: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.memory: list[int] = []
        self._runs, self._callers = runs, callers
        self._places, self._url = tuple(places), url
        self._offset = seed
        self._lock = threading.Lock()
        self._begun = 0

    def carry_out(self) -> None:
        with ProcessBackend() as backend:
            threads = [threading.Thread(target=self._call, args=(backend,)) for _ in range(self._callers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.memory.append(resident_mib(*backend.zygote_pids))

    def _call(self, backend: ProcessBackend) -> None:
        made: dict[str, Callable[[], Place]] = {
            "runs": lambda: Runs(backend),
            "live": LiveCage,
            "cells": Cells,
            "doors": lambda: Doors(self._url),
        }
        places: dict[str, Place] = {name: made[name]() for name in self._places}
        while (number := self._next(backend)) is not None:
            name = self._places[number % len(places)]
            self._take_step(places[name], name, number)
        for name, place in places.items():
            try:
                place.close()
            except BaseException as error:
                self.wrong.append(f"{name}: closing: {type(error).__name__}: {error}")

    def _take_step(self, place: Place, where: str, number: int) -> None:
        turn = number // len(self._places)
        is_hostile = turn % 10 == 0
        what = place.hostile[(turn // 10 + self._offset) % len(place.hostile)] if is_hostile else "benign"
        try:
            if is_hostile:
                end = place.attack(what)
            else:
                place.step(number)
                end = "right"
        except BaseException as error:
            self.wrong.append(f"{where}: {what}: {type(error).__name__}: {error}")
        else:
            with self._lock:
                self.ends[f"{where}: {what}: {end}"] += 1

    def _next(self, backend: ProcessBackend) -> int | None:
        with self._lock:
            if self._begun == self._runs:
                return None
            self._begun += 1
            if self._begun == max(1, self._runs // 10):
                self.memory.append(resident_mib(*backend.zygote_pids))
            return self._begun


def soak(runs: int, callers: int, seed: int, places: Sequence[str], workers: int = 0) -> dict[str, Any]:
    """Returns a report; its `faults` are empty when all is well."""
    warm_up = list(_HOSTILE).index("deep tree") - 1
    with ExitStack() as stack:
        Soak(30 * len(places), callers, warm_up, [name for name in places if name != "doors"] or ["runs"]).carry_out()
        before = Belongings.now()  # what is loaded once is loaded
        url = stack.enter_context(running_server(workers)) if "doors" in places else ""
        began, trial = time.monotonic(), Soak(runs, callers, seed, places, url)
        trial.carry_out()
        seconds = time.monotonic() - began
    eventually(lambda: Belongings.now().is_no_more_than(before, callers))
    after = Belongings.now()
    faults = trial.wrong[:20]
    if not after.is_no_more_than(before, callers):
        faults.append(f"left: {asdict(before)} -> {asdict(after)}")
    if trial.memory[-1] - trial.memory[0] > _GROWTH_MIB + _GROWTH_PER_CALLER_MIB * callers:
        faults.append(f"memory: {trial.memory[0]} -> {trial.memory[-1]} MiB")
    figures = {"runs": runs, "seconds": round(seconds, 1), "runs per second": round(runs / seconds, 1)}
    ends = dict(sorted(trial.ends.items()))
    return {**figures, "memory MiB": trial.memory, "ends": ends, "left": asdict(after), "faults": faults}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--places", default=",".join(PLACES), help="where, separated by commas (default: everywhere)")
    parser.add_argument("--workers", type=int, default=0, help="workers of the server")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--kill", type=int, metavar="TIMES", help="instead: kill the host program at so many moments")
    options = parser.parse_args(arguments)
    places = options.places.split(",")
    if not set(places) <= set(PLACES):
        parser.error(f"--places: choose from {', '.join(PLACES)}")
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
    print(f"seed {options.seed}, as {'root' if os.geteuid() == 0 else 'an ordinary user'}")
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        tempfile.tempdir = directory
        if options.kill:
            from tests.siege.killed import kill_at_random

            found = kill_at_random(options.kill, options.callers, options.seed, directory)
        else:
            found = soak(options.runs, options.callers, options.seed, places, options.workers)
    for name, value in found.items():
        print(f"{name}: {value}")
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
