"""Two programs over pipes, and whose fault it was."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.helpers import PATIENCE, fork_child, open_descriptors, reap

from warmcell import Case, ExecRequest, ExecResult, ExecutionTimeout, Limits, ProcessBackend, Usage, judge
from warmcell.judging.interactor import ACCEPTED, REJECTED, Interaction
from warmcell.judging.verdicts import CheckerFailed
from warmcell.lifetime import descriptors

pytestmark = pytest.mark.needs("user namespaces")

#: Has the program guess the number in `input` within ten questions.
INTERACTOR = """
import sys
number = int(open("input").read())
for question in range(10):
    line = sys.stdin.readline()
    if not line:
        sys.exit(43)
    if line.strip() == "crash the interactor":
        raise RuntimeError("its own fault")
    guess = int(line)
    print("=" if guess == number else "<" if number < guess else ">", flush=True)
    if guess == number:
        sys.exit(42)
sys.exit(43)
"""
GUESSER = """
low, high = 1, 1000
while True:
    middle = (low + high) // 2
    print(middle, flush=True)
    answer = input()
    if answer == "=":
        break
    if answer == "<":
        high = middle - 1
    else:
        low = middle + 1
"""


@pytest.fixture(scope="module")
def backend() -> Iterator[ProcessBackend]:
    with ProcessBackend() as made:
        yield made


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (GUESSER, "accepted"),
        ("for n in range(20): print(0, flush=True); input()", "wrong_answer"),
        ("print(0); raise SystemExit(3)", "runtime_error"),
        ("while True: pass", "time_limit"),
        ("input()", "time_limit"),  # both wait
        ("keep = bytearray(b'x') * (400 << 20)", "memory_limit"),
        ("print('crash the interactor', flush=True); input()", "checker_error"),
        ("import sys\nwhile True: sys.stdout.write('0\\n' * 1000)", "output_limit"),
    ],
)
def test_whose_fault_it_was(backend: ProcessBackend, code: str, status: str) -> None:
    seconds = 1 if status == "time_limit" else 20  # all others end by themselves, however long they had to wait
    request = ExecRequest("python", code, timeout=seconds, memory_limit_mb=128)
    interactor = ExecRequest("python", INTERACTOR, timeout=60)
    (verdict,) = judge(request, [Case("700", "")], backend=backend, interactor=interactor)
    assert verdict.status == status, verdict


@pytest.mark.needs("gcc")
def test_a_compiled_program_talks_to_an_interactor(backend: ProcessBackend) -> None:
    code = """
#include <stdio.h>
int main() {
    int low = 1, high = 1000; char answer[9];
    for (;;) {
        int middle = (low + high) / 2;
        printf("%d\\n", middle); fflush(stdout);
        if (scanf("%8s", answer) != 1 || answer[0] == '=') return 0;
        if (answer[0] == '<') high = middle - 1; else low = middle + 1;
    }
}
"""
    cases = [Case(str(number), "") for number in (1, 500, 1000)]
    interactor = ExecRequest("python", INTERACTOR, timeout=60)
    verdicts = judge(ExecRequest("c", code, timeout=20), cases, backend=backend, interactor=interactor)
    assert [verdict.status for verdict in verdicts] == ["accepted"] * 3


def test_an_interactor_that_does_not_build_is_the_callers_fault(backend: ProcessBackend) -> None:
    with pytest.raises(CheckerFailed, match="does not build"):
        judge(ExecRequest("python", "pass", 1), [Case()], backend=backend, interactor=ExecRequest("python", "(", 1))


async def test_a_case_that_gets_one_pipe_of_two_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads of this process may open descriptors meanwhile, with the numbers of the pipe."""
    made: list[str] = []

    def make_pipe() -> tuple[int, int]:
        if made:
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
        pipe = os.pipe()
        made.append(os.readlink(f"/proc/self/fd/{pipe[0]}"))
        return pipe

    monkeypatch.setattr(descriptors, "make_pipe", make_pipe)
    backend: Any = object()
    request = ExecRequest("python", "pass", 1)
    verdict = await Interaction(backend, request).run(request, Case())
    assert verdict.status == "host_error", verdict
    assert made and not [opened for opened in open_descriptors() if made[0] in opened]


async def test_an_interactor_reads_to_the_end_though_the_host_program_has_forked() -> None:
    children: list[int] = []

    class Backend:
        async def execute(self, request: ExecRequest, *, stdin: int, listener: object) -> ExecResult:
            if request.code == "program":
                children.append(fork_child(lambda: time.sleep(PATIENCE)))
                return ExecResult()
            readable, _, _ = await asyncio.to_thread(select.select, [stdin], [], [], PATIENCE / 6)
            return ExecResult(exit_code=ACCEPTED if readable and not os.read(stdin, 1) else REJECTED)

    backend: Any = Backend()
    try:
        interaction = Interaction(backend, ExecRequest("python", "interactor", 1))
        verdict = await interaction.run(ExecRequest("python", "program", 1), Case())
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            reap(child)
    assert verdict.status == "accepted", verdict


@pytest.mark.parametrize(
    ("missed", "queued", "status"),
    [(1, 4.0, "accepted"), (9, 4.0, "host_error"), (9, 0.1, "time_limit")],
)
async def test_a_program_whose_interactor_waits_for_a_place_is_not_out_of_time(
    missed: int, queued: float, status: str
) -> None:
    """The backend may be full of other runs, each longer than the program may wait."""

    class Backend:
        starts = 0

        async def execute(self, request: ExecRequest, *, stdin: int, listener: object) -> ExecResult:
            if request.code == "program":
                self.starts += 1
                if self.starts <= missed:
                    raise ExecutionTimeout(5, ExecResult())
                return ExecResult()
            return ExecResult(exit_code=ACCEPTED, queued=queued if self.starts <= missed else 0.0)

    backend: Any = Backend()
    interaction = Interaction(backend, ExecRequest("python", "interactor", 1))
    verdict = await interaction.run(ExecRequest("python", "program", 1), Case())
    assert verdict.status == status, verdict


@pytest.mark.parametrize(
    ("first", "status", "runs"),
    [
        (ExecutionTimeout(5, ExecResult(usage=Usage(0.2, 5.0))), "accepted", 2),
        (ExecutionTimeout(5, ExecResult(usage=Usage(4.9, 5.0))), "time_limit", 1),
        (ExecResult(usage=Usage(1.2, 1.2)), "time_limit", 1),
        (ExecResult(usage=Usage(0.9, 1.2)), "accepted", 1),
    ],
    ids=["others ran instead", "it computed", "its total is over the limit", "it was in time"],
)
async def test_the_load_of_the_host_does_not_decide(first: Any, status: str, runs: int) -> None:
    class Backend:
        runs = 0

        async def execute(self, request: ExecRequest, *, stdin: int, listener: object) -> ExecResult:
            if request.code != "program":
                return ExecResult(exit_code=ACCEPTED)
            self.runs += 1
            if self.runs > 1:
                return ExecResult()
            if isinstance(first, ExecResult):
                return first
            raise first

    backend: Any = Backend()
    request = ExecRequest("python", "program", 5, limits=Limits(cpu_seconds=1))
    verdict = await Interaction(backend, ExecRequest("python", "interactor", 1)).run(request, Case())
    assert (verdict.status, backend.runs) == (status, runs), verdict


@pytest.mark.parametrize(("is_read", "status", "runs"), [(False, "accepted", 2), (True, "time_limit", 1)])
async def test_a_program_whose_question_was_not_read_is_not_asleep(is_read: bool, status: str, runs: int) -> None:
    """The interactor had no processor. A program whose question was read waits for itself, or for ever."""

    class Backend:
        runs = 0

        def __init__(self) -> None:
            self.has_read = asyncio.Event()

        async def execute(self, request: ExecRequest, *, stdin: int, listener: Any) -> ExecResult:
            if request.code != "program":
                if is_read:
                    os.read(stdin, 100)
                    self.has_read.set()
                return ExecResult(exit_code=ACCEPTED)
            self.runs += 1
            listener.deliver("stdout", b"a question\n")
            if is_read:
                await self.has_read.wait()
            if self.runs == 1:
                raise ExecutionTimeout(5, ExecResult(usage=Usage(0.001, 5.0)))
            return ExecResult()

    backend: Any = Backend()
    interaction = Interaction(backend, ExecRequest("python", "interactor", 1))
    verdict = await interaction.run(ExecRequest("python", "program", 5), Case())
    assert (verdict.status, backend.runs) == (status, runs), verdict


async def test_a_program_that_sleeps_when_its_interactor_has_ended_runs_once() -> None:
    """What it printed after that is never read. It ran again, alone, and all other doubtful cases waited."""

    class Backend:
        runs = 0

        async def execute(self, request: ExecRequest, *, stdin: int, listener: Any) -> ExecResult:
            if request.code != "program":
                return ExecResult(exit_code=REJECTED)
            self.runs += 1
            listener.deliver("stdout", b"more than was asked for\n")
            readable, _, _ = await asyncio.to_thread(select.select, [stdin], [], [], PATIENCE)
            assert readable and not os.read(stdin, 1)
            raise ExecutionTimeout(5, ExecResult(usage=Usage(0.001, 5.0)))

    backend: Any = Backend()
    interaction = Interaction(backend, ExecRequest("python", "interactor", 1))
    verdict = await interaction.run(ExecRequest("python", "program", 5), Case())
    assert (verdict.status, backend.runs) == ("time_limit", 1), verdict


@pytest.mark.parametrize(("first", "status"), [("program", "runtime_error"), ("interactor", "checker_error")])
async def test_of_two_that_crash_the_first_is_at_fault(first: str, status: str) -> None:
    """An interactor that does not expect the end of its input crashes after each program that crashed."""

    class Backend:
        async def execute(self, request: ExecRequest, *, stdin: int, listener: object) -> ExecResult:
            if request.code != first:
                readable, _, _ = await asyncio.to_thread(select.select, [stdin], [], [], PATIENCE)
                assert readable and not os.read(stdin, 1)
            return ExecResult(exit_code=1)

    backend: Any = Backend()
    interaction = Interaction(backend, ExecRequest("python", "interactor", 1))
    verdict = await interaction.run(ExecRequest("python", "program", 1), Case())
    assert verdict.status == status, verdict
