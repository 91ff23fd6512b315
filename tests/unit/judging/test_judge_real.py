"""Verdicts of real programs, and that a crowd of callers changes none of them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.helpers import eventually

from warmcell import (
    AccessMode,
    AllowedPath,
    Case,
    ExecRequest,
    ProcessBackend,
    ProcessConfig,
    SandboxPolicy,
    ajudge,
    judge,
)

pytestmark = pytest.mark.needs("user namespaces")

#: Does what its input says.
OBEDIENT = """
#include <iostream>
#include <string>
#include <vector>
#include <cstdlib>
#include <unistd.h>
int main() {
    std::string word; std::cin >> word;
    if (word == "crash") std::abort();
    if (word == "fail") return 3;
    if (word == "spin") for (volatile long i = 0;; i++) {}
    if (word == "sleep") sleep(60);
    if (word == "grow") for (std::vector<char*> all;;) { all.push_back(new char[1 << 20]); for (int i = 0; i < 1 << 20; i += 4096) all.back()[i] = 1; }
    if (word == "flood") for (int i = 0; i < 1 << 15; i++) std::cout << std::string(1 << 10, 'x');
    std::cout << word << std::endl;
}
"""


@pytest.fixture(scope="module")
def backend() -> Iterator[ProcessBackend]:
    with ProcessBackend() as made:
        yield made


@pytest.mark.needs("g++")
def test_every_verdict_by_a_real_program(backend: ProcessBackend) -> None:
    expected = {
        "right": "accepted",
        "other": "wrong_answer",
        "crash": "runtime_error",
        "fail": "runtime_error",
        "spin": "time_limit",
        "sleep": "time_limit",
        "grow": "memory_limit",
        "flood": "output_limit",
    }
    cases = [
        Case(word, "x" if word == "other" else word, timeout=1 if word in ("spin", "sleep") else 20, name=word)
        for word in expected
    ]
    request = ExecRequest("cpp", OBEDIENT, 5, memory_limit_mb=64)
    verdicts = judge(request, cases, backend=backend)
    assert {case.name: verdict.status for case, verdict in zip(cases, verdicts, strict=True)} == expected
    by_name = {case.name: verdict for case, verdict in zip(cases, verdicts, strict=True)}
    assert by_name["crash"].result is not None and by_name["crash"].result.signal == 6
    assert by_name["spin"].cpu_time > 0.02 and by_name["spin"].time >= 1
    assert by_name["right"].memory_bytes > 0


def test_the_limit_may_be_on_the_processors_time(backend: ProcessBackend) -> None:
    code = "import time\nif input() == 'sleep': time.sleep(1.25)\nelse:\n while True: pass"
    cases = [Case("sleep", ""), Case("spin", "")]
    began = time.monotonic()
    verdicts = judge(ExecRequest("python", code, 1), cases, backend=backend, clock="cpu")
    assert [verdict.status for verdict in verdicts] == ["accepted", "time_limit"]
    assert verdicts[0].time > 1 and verdicts[1].cpu_time >= 0.9
    assert time.monotonic() - began < 60


@pytest.mark.needs("g++")
def test_a_mistake_is_a_build_error_for_every_case(backend: ProcessBackend) -> None:
    verdicts = judge(ExecRequest("cpp", "int main() { return x; }", 5), [Case("", ""), Case("", "")], backend=backend)
    assert [verdict.status for verdict in verdicts] == ["build_error"] * 2
    assert verdicts[0].result is not None and "main.cpp:1:" in verdicts[0].result.stderr


def test_no_trivial_program_is_out_of_time_because_of_a_crowd(backend: ProcessBackend) -> None:
    """Four times more callers than processors, each with a program that computes beside one that has nothing to do."""
    callers = 4 * len(os.sched_getaffinity(0))
    busy = ExecRequest("python", "n = int(input())\nfor _ in range(3000000): n += 1\nprint('x')", 60)
    requests = [ExecRequest("python", "print(input())", 1), ExecRequest("command", "cat", 1), busy]

    async def crowd() -> list[str]:
        judged = [
            ajudge(requests[n % 3], [Case("7", "x" if n % 3 == 2 else "7")] * 6, backend=backend)
            for n in range(callers)
        ]
        return [verdict.status for verdicts in await asyncio.gather(*judged) for verdict in verdicts]

    statuses = asyncio.run(crowd())
    assert statuses == ["accepted"] * (6 * callers)


#: Leaves a mark for each time that it was started, and ends when there are as many as its input says.
MARKS = """
import os, time
marks = len(os.listdir("/marks"))
open(f"/marks/{marks}", "w").close()
time.sleep(100 if marks < int(input()) else 0)
print("x")
"""


@pytest.mark.parametrize(("deaths", "status"), [(1, "accepted"), (2, "host_error")])
def test_what_the_host_failed_at_is_run_again_elsewhere_and_then_told_as_the_hosts(
    tmp_path: Path, deaths: int, status: str
) -> None:
    """The manager of all cells is killed while the program runs."""
    policy = SandboxPolicy(allowed_paths=(AllowedPath(str(tmp_path), AccessMode.READ_WRITE, "/marks"),))
    config = ProcessConfig(pool_size=0, pool_min=0)
    with ProcessBackend(config, policy=policy) as backend, ThreadPoolExecutor() as threads:
        judged = threads.submit(judge, ExecRequest("python", MARKS, 120), [Case(str(deaths), "x")], backend=backend)
        for death in range(deaths):
            assert eventually(lambda n=death: (tmp_path / str(n)).exists(), 60)  # type: ignore[misc]
            for manager in backend.zygote_pids:
                os.kill(manager, signal.SIGKILL)
        (verdict,) = judged.result(120)
    assert verdict.status == status, verdict
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.attack("S3-07")
def test_a_program_that_the_kernel_cannot_load_is_the_guests_fault(backend: ProcessBackend) -> None:
    code = """
__asm__(".section .interp,\\"a\\"\\n.incbin \\"/etc/passwd\\"\\n");
int main() { return 0; }
"""
    (verdict,) = judge(ExecRequest("c", code, timeout=5), [Case()], backend=backend)
    assert verdict.status == "runtime_error" and verdict.result is not None, verdict
    assert verdict.result.exit_code == 126 and "cannot execute" in verdict.result.stderr


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_endless_output_ends_at_its_limit(backend: ProcessBackend, stream: str) -> None:
    """Not at the time limit, which is a minute away."""
    code = f"import sys\nwhile True: sys.{stream}.write('x' * 1000)"
    (verdict,) = judge(ExecRequest("python", code, timeout=60), [Case("", "x")], backend=backend)
    assert verdict.status == "output_limit" and verdict.result is not None, verdict
    assert verdict.cpu_time < 30 and len(verdict.result.stdout_bytes) <= 1 << 20
    assert verdict.result.signal == signal.SIGXFSZ


@pytest.mark.needs("gcc")
def test_limits_of_a_case_hold(backend: ProcessBackend) -> None:
    code = """
#include <stdlib.h>
#include <stdio.h>
#include <time.h>
int main() {
    char *area = calloc(40, 1 << 20);
    for (size_t at = 0; at < 40u << 20; at += 4096) area[at] = 1;
    while (clock() < CLOCKS_PER_SEC * 3 / 10) {}
    puts("ok");
}
"""
    cases = [Case("", "ok"), Case("", "ok", memory_mb=20), Case("", "ok", memory_mb=80), Case("", "ok", timeout=0.1)]
    verdicts = judge(ExecRequest("c", code, timeout=5, memory_limit_mb=60), cases, backend=backend)
    assert [verdict.status for verdict in verdicts] == ["accepted", "memory_limit", "accepted", "time_limit"]


def test_callers_in_many_threads_get_the_same_verdict(backend: ProcessBackend) -> None:
    """Each with a judge of its own: 0.2 s of processor time at a limit of one second was late, every time."""
    code = "import time\nwhile time.process_time() < 0.2: pass\nprint('ok')"
    request = ExecRequest("python", code, timeout=1)
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda _: judge(request, [Case("", "ok")], backend=backend)[0].status, range(32)))
    assert found == ["accepted"] * 32
