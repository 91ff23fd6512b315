"""An evaluation of a thousand tasks that is killed again and again, and ends as if it had not been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.helpers import until

TASKS, KILLS, CONCURRENCY = 1000, 3, 8
PROGRAM = """
import sys
from warmcell import FakeBackend, evaluate

log = open(sys.argv[2], "a", buffering=1)

def answer(request):
    log.write(request.code + "\\n")
    return "right" if int(request.code) % 3 else "wrong"

tasks = ({"id": str(n), "cases": [{"expected": "right"}]} for n in range(int(sys.argv[3])))
samples = ({"id": str(n), "code": str(n)} for n in range(int(sys.argv[3])))
evaluate(tasks, samples, out=sys.argv[1], concurrency=int(sys.argv[4]), backend=FakeBackend(answer))
"""


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_killed_several_times_it_repeats_and_loses_nothing(tmp_path: Path) -> None:
    out, log = tmp_path / "verdicts.jsonl", tmp_path / "log"
    command = [sys.executable, "-c", PROGRAM, str(out), str(log), str(TASKS), str(CONCURRENCY)]
    kills = 0
    for kill in range(KILLS):
        running = subprocess.Popen(command)
        goal = TASKS * (kill + 1) // (KILLS + 2)
        until(lambda goal=goal, running=running: lines(out) >= goal or running.poll() is not None)  # type: ignore[misc]
        running.send_signal(signal.SIGKILL)
        kills += running.wait() == -signal.SIGKILL
        with out.open("ab") as file:  # as if the kernel had written half of a line
            file.write(b'{"task_id": "9')
            os.fsync(file.fileno())
    assert kills, "it was never interrupted"
    subprocess.run(command, check=True, timeout=240)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(int(row["task_id"]) for row in rows) == list(range(TASKS))
    assert all(row["status"] == ("accepted" if int(row["task_id"]) % 3 else "wrong_answer") for row in rows)
    # Only what was in progress at a kill ran again.
    assert lines(log) <= TASKS + kills * (CONCURRENCY + 1)
    before = out.read_bytes()
    subprocess.run(command, check=True, timeout=240)
    assert out.read_bytes() == before
