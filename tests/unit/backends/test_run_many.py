"""Faults among many runs: a failure of the host is retried once, and never counted as the program's."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from warmcell import (
    BackendBusy,
    BackendUnavailable,
    ExecRequest,
    ExecResult,
    ExecutionFailed,
    ExecutionTimeout,
    FakeBackend,
    InvalidRequest,
    MemoryExceeded,
)
from warmcell.backends.fake import Reply
from warmcell.backends.many import run_many

REQUEST = ExecRequest("python", "x", 5)
BUSY = BackendBusy(1)
HOST = ExecutionFailed("the host had a bad moment")


@pytest.mark.parametrize(
    ("script", "attempts", "ends"),
    [
        (["fine"], 1, "fine"),
        ([HOST, "fine"], 2, "fine"),
        ([HOST, HOST, "fine"], 2, "host"),
        ([OSError("odd"), "fine"], 2, "fine"),
        ([BUSY] * 5 + ["fine"], 6, "fine"),
        ([BUSY, HOST, BUSY, "fine"], 4, "fine"),
        ([BUSY, HOST, BUSY, HOST, "fine"], 4, "host"),
        ([BUSY] * 20, 11, "host"),
        ([OSError("odd"), OSError("odd"), "fine"], 2, "host"),
        ([ExecutionTimeout(1), "fine"], 1, "guest"),
        ([MemoryExceeded(1), "fine"], 1, "guest"),
        ([InvalidRequest("no"), "fine"], 1, "caller"),
        ([BackendUnavailable("never here"), "fine"], 1, "host"),
        ([ExecResult(exit_code=1, stdout="fine"), "again"], 1, "fine"),
    ],
)
def test_a_failure_of_the_host_is_tried_once_more(script: list[Reply], attempts: int, ends: str) -> None:
    backend = FakeBackend(script)
    (outcome,) = backend.run_many_blocking([REQUEST])
    assert len(backend.requests) == attempts
    assert (outcome.error.fault if outcome.error else outcome.result and outcome.result.stdout) == ends


def results_alive() -> int:
    return sum(type(item) is ExecResult for item in gc.get_objects())  # `isinstance` asks weak proxies


def test_the_memory_of_many_is_that_of_a_few() -> None:
    """Results are let go of once they were read: of 300, never many more than twice as many as run at a time."""
    backend = FakeBackend(lambda request: "x")
    before = results_alive()
    most = 0
    for outcome in backend.run_many_blocking((REQUEST for _ in range(300)), 4):
        if outcome.index % 25 == 0:
            most = max(most, results_alive() - before)
        backend.requests.clear()
    assert 0 < most <= 3 * 2 * 4


async def test_a_cancellation_while_the_runs_end_is_not_lost() -> None:
    is_ending, may_end = asyncio.Event(), asyncio.Event()

    async def execute(request: ExecRequest) -> ExecResult:
        if request.code == "slow":
            try:
                await asyncio.sleep(60)
            finally:
                is_ending.set()
                await may_end.wait()
        return ExecResult()

    async def leave_early() -> None:
        runs = run_many(execute, [REQUEST, ExecRequest("python", "slow", 5)], 2)
        async with aclosing(runs) as outcomes:  # type: ignore[type-var]
            async for _ in outcomes:
                break

    leaving = asyncio.create_task(leave_early())
    await is_ending.wait()
    leaving.cancel()
    await asyncio.sleep(0.01)
    assert not leaving.done(), "it waits for the end of its runs"
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_requests_that_exit_the_program_end_the_batch() -> None:
    def requests() -> Iterator[ExecRequest]:
        yield REQUEST
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        async for _ in run_many(FakeBackend(lambda request: "x").execute, requests(), 2):
            pass
