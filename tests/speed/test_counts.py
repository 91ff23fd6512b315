"""What a warm run takes, counted and not timed: whoever adds a system call, a process or a copy finds out here.

The ceilings are what was counted when they were written, and a little for a busy host, on which a run waits more often.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.helpers import is_root

from warmcell import ExecRequest, Language, ProcessBackend
from warmcell.cage.linux import list_program
from warmcell.diagnosis.bench import wait_until_ready

pytestmark = [pytest.mark.needs("linux", "user namespaces")]

RUNS = 40
HELLO = ExecRequest(Language.PYTHON, "print(1)", 60)
#: As little as a program can do, and a shell's own start with it.
NOTHING = ExecRequest(Language.COMMAND, ":", 60)
MOST_SYSTEM_CALLS = 480 if is_root() else 435  # 430 with a control group, 390 without
#: From its request to the result, where a cell waits: 4 looks at a control group are root's.
MOST_CALLS_OF_THE_CALLER = 34 if is_root() else 30  # 28, 24
OPEN_OR_REMOVE = {"open", "openat", "pipe2", "eventfd2", "socketpair", "mkdir", "rmdir", "unlink"}
MOST_PROCESSES = 2  # the guest and its init
MOST_MODULES_OF_THE_CAGE = 71
MOST_FAULTS = {"guests and inits": 540, "zygote": 90, "manager": 20}  # 335 (510 for those that rehearse), 60, 2
#: Of a guest that has rehearsed, from its job to its end, and of its init: nearly all was copied while it waited.
MOST_FAULTS_WITH_THE_JOB = 50  # 17
MOST_FAULTS_OF_AN_INIT = 150
#: Of a program: no copy of the zygote is made, and so nothing is to be copied, there or here.
MOST_FAULTS_OF_A_PROGRAM = {"guests and inits": 330, "zygote": 15, "manager": 20}  # 200, 2, 5
#: The manager's is what it reads of mounts, of which a shell has more: 5,600 and 11,000. Sockets are not counted.
MOST_BYTES = {"supervisor": 500, "zygote": 500}  # 120, 0

needs_code = pytest.mark.skipif(not list_program.is_supported(), reason="no machine code for this machine")

PROGRAM = """
import sys
from warmcell import ExecRequest, Language, ProcessBackend
with ProcessBackend() as backend:
    for _ in range(int(sys.argv[1])):
        assert backend.execute_blocking(ExecRequest(Language.PYTHON, "print(1)", 60)).stdout == "1\\n"
"""


def _traced(runs: int, place: Path) -> dict[str, int]:
    """How often each system call was made by everything that a program with so many runs consists of."""
    command = ["strace", "-f", "-c", "-o", str(place), sys.executable, "-c", PROGRAM, str(runs)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    rows = re.findall(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+)(?: +\d+)? +(\w+)$", place.read_text(), re.MULTILINE)
    return {name: int(calls) for calls, name in rows}


@pytest.mark.needs("strace")
def test_system_calls_and_processes(tmp_path: Path) -> None:
    per_run = _calls_per_run(tmp_path)
    if per_run["total"] > MOST_SYSTEM_CALLS:  # a busy host makes runs long enough to be looked at
        per_run = _calls_per_run(tmp_path)
    most_often = sorted(per_run.items(), key=lambda item: -item[1])[:12]
    assert per_run["total"] <= MOST_SYSTEM_CALLS, most_often
    born = sum(per_run.get(name, 0) for name in ("clone", "clone3", "fork", "vfork"))
    assert born <= MOST_PROCESSES + 0.5, born  # a pool that grows makes a cell more than there were runs


@pytest.mark.needs("strace")
def test_modules_of_a_command(tmp_path: Path) -> None:
    """Those of the manager and its zygote: `tests/arch/test_startup.py` counts the command's own. The watcher loads more
    if the run takes long.
    """
    place = tmp_path / "files"
    command = [sys.executable, "-m", "warmcell", "run", "python", "-c", "print(1)"]
    subprocess.run(command, check=True, capture_output=True, timeout=240)  # compiles what is not yet compiled
    traced = ["strace", "-f", "-e", "trace=openat", "-o", str(place), *command]
    subprocess.run(traced, check=True, capture_output=True, timeout=240)
    lines = place.read_text().splitlines()
    _, *others = dict.fromkeys(line.split()[0] for line in lines)
    first = others[:3]  # the process that was started, the manager that it became, and the zygote
    opened = [line for line in lines if line.split()[0] in first]
    modules = re.findall(r"/warmcell/cage/([\w/]+)\.[\w-]+\.pyc", "\n".join(opened))
    assert len(modules) <= MOST_MODULES_OF_THE_CAGE, sorted(modules)


#: One run at a time, each with a cell that waits for it, and a word before and after.
PROGRAM_WITH_PAUSES = """
import os, sys
from warmcell import ProcessBackend, ProcessConfig
from warmcell.diagnosis.bench import ours, wait_until_ready
from warmcell.runner import pump
pump._SHORT_WAIT = 60.0  # a run under strace takes longer than most, for which the pump does more
with ProcessBackend(ProcessConfig(pool_min=2)) as backend:
    run, wait = ours(backend), wait_until_ready(backend, 2)
    for _ in range(int(sys.argv[1])):
        wait()
        os.write(1, b"begins")
        run()
        os.write(1, b"ended")
"""


@pytest.mark.needs("strace")
def test_what_the_caller_waits_for(tmp_path: Path) -> None:
    """Whatever can be opened before the run, or removed after it, is not done between the two."""
    place = tmp_path / "calls"
    command = ["strace", "-f", "-o", str(place), sys.executable, "-c", PROGRAM_WITH_PAUSES, str(RUNS)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    lines = place.read_text().splitlines()
    own = [line.partition(" ")[2].strip() for line in lines if line.split()[0] == lines[0].split()[0]]
    begun = [number for number, line in enumerate(own) if line.startswith('write(1, "begins"')]
    ended = [number for number, line in enumerate(own) if line.startswith('write(1, "ended"')]
    runs = [
        [line.partition("(")[0] for line in own[first + 1 : last] if re.match(r"\w+\(", line)]
        for first, last in zip(begun, ended, strict=True)
    ]
    middle = sorted(runs, key=len)[RUNS // 2]
    assert len(middle) <= MOST_CALLS_OF_THE_CALLER and not OPEN_OR_REMOVE & set(middle), Counter(middle)


def _calls_per_run(directory: Path) -> dict[str, float]:
    few, many = (_traced(runs, directory / str(runs)) for runs in (RUNS, 2 * RUNS))
    return {name: (many[name] - few.get(name, 0)) / RUNS for name in many}


def _numbers(pid: int | str, name: str) -> list[str]:
    return Path(f"/proc/{pid}/{name}").read_text().rpartition(")")[2].split()


def _bytes(pid: int | str) -> int:
    fields = _numbers(pid, "io")
    return int(fields[1]) + int(fields[3])


# The manager reads 9 kB of counters before it uses a network namespace again, which costs less than making one.
@pytest.mark.parametrize(
    ("request_", "most_faults", "managers_bytes"),
    [(HELLO, MOST_FAULTS, 18_000), pytest.param(NOTHING, MOST_FAULTS_OF_A_PROGRAM, 24_000, marks=needs_code)],
    ids=["python", "program"],
)
def test_copied_pages_and_bytes(request_: ExecRequest, most_faults: dict[str, int], managers_bytes: int) -> None:
    with ProcessBackend() as backend:
        for _ in range(RUNS):
            backend.execute_blocking(request_)
        manager = backend.zygote_pids[0]
        wait_until_ready(backend, 4)()
        # The first that was started; not the smallest number, since those begin again.
        children = Path(f"/proc/{manager}/task/{manager}/children").read_text().split()
        zygote = min(map(int, children), key=lambda pid: int(_numbers(pid, "stat")[19]))

        def count() -> tuple[dict[str, int], dict[str, int]]:
            wait_until_ready(backend, 4)()
            own = _numbers(manager, "stat")
            faults = {
                "manager": int(own[7]),
                "guests and inits": int(own[8]),
                "zygote": int(_numbers(zygote, "stat")[7]),
            }
            return faults, {"supervisor": _bytes("self"), "manager": _bytes(manager), "zygote": _bytes(zygote)}

        before = count()
        for _ in range(RUNS):
            backend.execute_blocking(request_)
        after = count()
    most_bytes = {**MOST_BYTES, "manager": managers_bytes}
    faults, moved = (
        {name: (late[name] - early[name]) / RUNS for name in late} for early, late in zip(before, after, strict=True)
    )
    assert {name: value for name, value in faults.items() if value > most_faults[name]} == {}, faults
    assert {name: value for name, value in moved.items() if value > most_bytes[name]} == {}, moved


def test_who_waited_has_rehearsed_its_job() -> None:
    counts = []
    with ProcessBackend() as backend:
        for _ in range(RUNS):
            backend.execute_blocking(HELLO)
        manager = backend.zygote_pids[0]
        for _ in range(8):  # the first of these cells were made while others were run, in a hurry
            before, ended = _faults_of_the_waiting(backend), int(_numbers(manager, "stat")[8])
            backend.execute_blocking(HELLO)
            gone = before.keys() - _faults_of_the_waiting(backend).keys()
            counts += [int(_numbers(manager, "stat")[8]) - ended - before[pid] for pid in gone if len(gone) == 1]
    assert min(counts) <= MOST_FAULTS_WITH_THE_JOB, counts


def _faults_of_the_waiting(backend: ProcessBackend) -> dict[str, int]:
    """By the pids of all that the manager has started, once nothing of it has anything left to do."""
    wait_until_ready(backend, 4)()
    time.sleep(0.1)
    manager = backend.zygote_pids[0]
    pids = Path(f"/proc/{manager}/task/{manager}/children").read_text().split()
    counts = {pid: int(_numbers(pid, "stat")[7]) for pid in pids}
    return {pid: count for pid, count in counts.items() if count > MOST_FAULTS_OF_AN_INIT}
