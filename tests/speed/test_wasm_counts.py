"""What a warm WASM run takes, counted and not timed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import require

RUNS = 5
PROGRAM = """
import sys, time
from warmcell import ExecRequest, WasmBackend
with WasmBackend() as backend:
    print(backend.execute_blocking(ExecRequest("wasm", '(module (func (export "_start")))', 60)).exit_code)
    (worker,) = backend.worker_pids()
    for _ in range(int(sys.argv[1])):
        time.sleep(0.1)
        backend.execute_blocking(ExecRequest("wasm", '(module (func (export "_start")))', 60))
    print(worker)
"""
#: After a pause each call of a function in Python is a few microseconds: its code is in no cache any more.
MOST_CALLS = 95
CALLS = """
import sys
from warmcell import ExecRequest, WasmBackend
calls, counts = 0, []
def count(frame, event, argument):
    global calls
    calls += event == "call"
with WasmBackend() as backend:
    request = ExecRequest("wasm", '(module (func (export "_start")))', 60)
    for _ in range(60):  # by then records have their constructors
        backend.execute_blocking(request)
    for _ in range(9):  # where the answer comes in two pieces, it takes more
        calls = 0
        sys.setprofile(count)
        backend.execute_blocking(request)
        sys.setprofile(None)
        counts.append(calls)
    print(min(counts))
"""


def test_the_caller_of_a_warm_run_calls_few_functions() -> None:
    require(importlib.util.find_spec("wasmtime"), "wasmtime is not installed")
    done = subprocess.run([sys.executable, "-c", CALLS], check=True, capture_output=True, timeout=240, text=True)
    assert int(done.stdout) <= MOST_CALLS


@pytest.mark.needs("linux", "strace")
def test_a_worker_sleeps_between_its_answer_and_later_work(tmp_path: Path) -> None:
    """Else it goes on while the supervisor waits for its processor: half a millisecond, and more on a busy host."""
    require(importlib.util.find_spec("wasmtime"), "wasmtime is not installed")
    command = ["strace", "-f", "-e", "trace=sendto,poll,munmap", "-o", str(tmp_path / "calls"), sys.executable]
    done = subprocess.run([*command, "-c", PROGRAM, str(RUNS)], check=True, capture_output=True, timeout=240, text=True)
    _, worker = done.stdout.split()
    calls = re.findall(rf"^{worker} +(\w+)\((.*)", (tmp_path / "calls").read_text(), re.MULTILINE)
    after_answers = [calls[at + 1] for at, (name, _) in enumerate(calls[:-1]) if name == "sendto"][-RUNS:]
    slept = [name for name, arguments in after_answers if name == "poll" and re.search(r"\}\], 1, 1\b", arguments)]
    assert len(slept) >= RUNS - 1, after_answers  # on a busy host the next request may be there already
