"""Kills the host program during runs: nothing is left once another one has started (S2-21)."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.contract.processes import alive, descendants
from tests.helpers import eventually

from warmcell.runner.cgroup_parent import group_parent

ROOT = Path(__file__).resolve().parents[2]
_PR_SET_CHILD_SUBREAPER = 36
_LONGEST_SECONDS = 3.0
_SETTLES_SECONDS = 20.0

#: Runs of every kind, without an end.
_BUSY = """
import sys
from tests.siege.soak import Soak
Soak(1_000_000, int(sys.argv[1]), int(sys.argv[2])).carry_out()
"""
_NEXT_START = """
from warmcell import Sandbox
with Sandbox() as sandbox:
    print(sandbox.run("print(6 * 7)").stdout, end="")
"""


def kill_at_random(times: int, callers: int, seed: int, directory: str) -> dict[str, Any]:
    """Kills so many programs, each at another moment of its life. `faults` is empty when all is well."""
    # Orphans are reparented to this process, so that leftovers can be seen.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    choice, faults, moments = random.Random(seed), [], []
    for number in range(times):
        moment = choice.uniform(0, _LONGEST_SECONDS)
        moments.append(round(moment, 2))
        pid = _kill_one(moment, callers, seed + number, directory)
        left = _find_leftovers_after_next_start(pid, directory)
        faults += [f"killed after {moment:.3f} s (seed {seed + number}): {item}" for item in left]
    return {
        "killed": times,
        "after seconds": moments if times <= 20 else sorted(moments)[:: times // 10],
        "faults": faults,
    }


def _kill_one(moment: float, callers: int, seed: int, directory: str) -> int:
    program = _start(_BUSY, directory, str(callers), str(seed))
    time.sleep(moment)
    program.kill()
    program.wait()
    return program.pid


def _start(text: str, directory: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": directory, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", text, *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _find_leftovers_after_next_start(killed: int, directory: str) -> list[str]:
    """Processes end with the program; what is on disk goes when the next one starts."""
    faults = []
    if not eventually(_reap_and_check, _SETTLES_SECONDS):
        faults.append(f"processes: {_commands()}")
        _end_all()
    said, complaints = _start(_NEXT_START, directory).communicate(timeout=60)
    if said != "42\n":
        faults.append(f"the next program: {said}{complaints[-2000:]}")
    if not eventually(lambda: not _directories(directory)):
        faults.append(f"directories: {_directories(directory)}")
    if not eventually(lambda: not _groups(killed)):
        faults.append(f"groups: {_groups(killed)}")
    return faults


def _reap_and_check() -> bool:
    """Reaps what has ended on the way."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return not alive(descendants())


def _commands() -> list[str]:
    found = []
    for pid in alive(descendants()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found.append(f"{pid} {words[0].decode(errors='replace')} {words[-2][:40] if len(words) > 1 else ''!r}")
    return found


def _end_all() -> None:
    for pid in alive(descendants()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _directories(directory: str) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.startswith((".warmcell", "warmcell")))


def _groups(killed: int) -> list[str]:
    parent = group_parent()
    bases = {os.path.dirname(path) for path in parent.directories.values()} if parent else set()
    return [
        entry.path for base in bases for entry in os.scandir(base) if entry.name.startswith(f"warmcell.home.{killed}.")
    ]
