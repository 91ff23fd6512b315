"""What a program of a live cage has ended with."""

from __future__ import annotations

import signal
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell import ExecResult, ExecutionFailed, MemoryExceeded
from warmcell.backends.process.started_programs import ProgramExit, StartedProgram, exit_from, start_error


@pytest.mark.claim("WC-RX-8")
@pytest.mark.parametrize(
    ("status", "kills", "is_memory"),
    [
        (signal.SIGKILL, 1, True),
        (signal.SIGKILL, 0, False),
        (signal.SIGSEGV, 1, False),
        (signal.SIGABRT | 0x80, 1, False),
        (3 << 8, 1, False),
    ],
)
def test_only_what_the_kernel_has_killed_has_exceeded_the_memory(status: int, kills: int, is_memory: bool) -> None:
    """A child of a session may be killed for the memory, and the session crash by itself later."""
    killed = [0]
    template = SimpleNamespace(effective=SimpleNamespace(limits=SimpleNamespace(memory_mb=64)))
    cage: Any = SimpleNamespace(memory_kills=lambda: killed[0], template=template)
    program = StartedProgram(cage, 7, 0, "1", 0.0)
    killed[0] += kills
    program.ended.set_result(ProgramExit(status, 0.0, 0))
    assert isinstance(program.limit_error(ExecResult()), MemoryExceeded) is is_memory


@pytest.mark.attack("S3-01")
async def test_a_kill_that_the_agent_cannot_carry_out_ends_the_cage() -> None:
    """Without a descriptor for /proc it finds no process: `kill` returned, and the program went on."""
    ends: list[str] = []
    answer: Future[dict[str, Any]] = Future()

    async def request_async(*_: object, **__: object) -> dict[str, Any]:
        return answer.result()

    cage: Any = SimpleNamespace(
        memory_kills=lambda: 0,
        request=lambda *_, **__: answer.result(),
        request_async=request_async,
        send=lambda *_, **__: answer,
        end_soon=ends.append,
    )
    program = StartedProgram(cage, 7, 0, "1", 0.0)
    program.kill_soon()
    assert not ends
    answer.set_result({"error": "Too many open files", "errno": 24})
    assert ends == ["its agent could not kill a program"]
    program.kill_blocking()
    await program.kill()
    assert len(ends) == 3
    answer = Future()
    answer.set_result({})
    program.kill_soon()
    program.kill_blocking()
    await program.kill()
    assert len(ends) == 3


@pytest.mark.attack("S3-11")
def test_a_signal_that_no_kernel_has_is_an_invalid_report() -> None:
    """Python cannot name it, so asking why a session ended would fail."""
    report = {"event": "ended", "pid": 7, "cpu": 0, "peak": 0}
    assert exit_from({**report, "status": 64}) == ProgramExit(64, 0.0, 0)
    assert exit_from({**report, "status": 65}) is None
    assert exit_from({**report, "status": 100 | 0x80}) is None


@pytest.mark.attack("S3-11")
def test_the_reason_of_a_failed_start_is_one_line_or_none_at_all() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for reason, shown in (("no\nhint: \x1b[2J", r"no\nhint: \x1b[2J"), (deep, "no reason given")):
        error = start_error({"error": reason, "errno": 5}, "/work")
        assert isinstance(error, ExecutionFailed) and error.message == f"could not start the process: {shown}"
