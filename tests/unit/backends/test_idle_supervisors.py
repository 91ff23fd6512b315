"""Supervisors that wait for the next batch of their backend, and what happens until the first one is ready."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from tests.helpers import in_a_fork, until

from warmcell import ExecRequest, ProcessBackend, errors
from warmcell.backends import supervisor_process
from warmcell.backends.many import run_many
from warmcell.backends.supervisors import Supervisors
from warmcell.core.types import ExecResult

pytestmark = pytest.mark.needs("linux", "user namespaces")
HELLO = ExecRequest("python", "print('hello')", 60)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessBackend]:
    monkeypatch.setattr(supervisor_process, "_KEPT_SECONDS", 600)
    with ProcessBackend() as backend:
        yield backend


async def run_batch(backend: ProcessBackend, count: int = 4) -> None:
    """By two supervisors, once they are ready."""
    async with Supervisors(backend.recipe, 2, backend.idle_supervisors) as supervisors:  # type: ignore[arg-type]
        await supervisors.warm_up()
        outcomes = [outcome async for outcome in run_many(supervisors.execute, [HELLO] * count)]
    assert [outcome.result and outcome.result.stdout for outcome in outcomes] == ["hello\n"] * count


def kept_pids(backend: ProcessBackend) -> list[int]:
    return [member._process.pid for member in backend.idle_supervisors._members if member._process is not None]


def is_gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def test_batches_of_several_event_loops_share_them(backend: ProcessBackend) -> None:
    asyncio.run(run_batch(backend))
    first = kept_pids(backend)
    assert len(first) == 2
    for _ in range(3):
        asyncio.run(run_batch(backend))
        assert sorted(kept_pids(backend)) == sorted(first)
    backend.close()
    until(lambda: all(is_gone(pid) for pid in first))


def test_two_batches_at_once_have_their_own(backend: ProcessBackend) -> None:
    async def run_two() -> None:
        await asyncio.gather(run_batch(backend), run_batch(backend))

    asyncio.run(run_two())
    assert len(kept_pids(backend)) == 2


def test_they_end_when_no_batch_comes(backend: ProcessBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_process, "_KEPT_SECONDS", 0.1)
    asyncio.run(run_batch(backend))
    until(lambda: not kept_pids(backend))
    asyncio.run(run_batch(backend))


def test_one_that_died_is_replaced(backend: ProcessBackend) -> None:
    asyncio.run(run_batch(backend))
    dead, other = kept_pids(backend)
    os.kill(dead, signal.SIGKILL)
    until(lambda: not all(member.is_alive for member in backend.idle_supervisors._members))
    asyncio.run(run_batch(backend))
    assert other in kept_pids(backend) and dead not in kept_pids(backend)


async def test_a_batch_that_was_left_does_not_disturb_the_next(backend: ProcessBackend) -> None:
    slow = ExecRequest("python", "import time; time.sleep(0.2); print('late')", 60)
    for _ in range(3):
        async with Supervisors(backend.recipe, 2, backend.idle_supervisors) as supervisors:  # type: ignore[arg-type]
            await supervisors.warm_up()
            outcomes = run_many(supervisors.execute, [slow] * 20, 4)
            await anext(outcomes)
            await outcomes.aclose()  # type: ignore[attr-defined]
        await run_batch(backend)


async def test_runs_are_carried_out_here_until_one_is_ready(backend: ProcessBackend) -> None:
    here = ExecResult("here")

    async def run_here(_: ExecRequest) -> ExecResult:
        return here

    async with Supervisors(backend.recipe, 2) as supervisors:  # type: ignore[arg-type]
        execute = supervisors.runner(run_here)
        assert await execute(HELLO) is here
        await supervisors.warm_up()
        assert (await execute(HELLO)).stdout == "hello\n"


def test_short_batches_need_not_wait_for_them(backend: ProcessBackend) -> None:
    async def run() -> None:
        for _ in range(3):
            outcomes = [outcome async for outcome in backend.run_many([HELLO] * 2, processes=2)]
            assert [outcome.result and outcome.result.stdout for outcome in outcomes] == ["hello\n"] * 2

    asyncio.run(run())
    pids = kept_pids(backend)
    assert len(pids) == 2  # the same for all three, whether they were ready or not
    asyncio.run(run_batch(backend))
    assert sorted(kept_pids(backend)) == sorted(pids)


def test_a_fork_has_none_and_holds_none_of_their_connections(backend: ProcessBackend) -> None:
    asyncio.run(run_batch(backend))
    members = backend.idle_supervisors._members

    def look() -> list[object]:
        held = [member._socket.fileno() for member in members if member._socket is not None]
        return [len(backend.idle_supervisors._members), held]

    assert in_a_fork(look) == [0, [-1, -1]]
    asyncio.run(run_batch(backend))


async def test_a_supervisor_that_dies_while_it_starts_is_reported(backend: ProcessBackend) -> None:
    with pytest.raises(errors.BackendUnavailable, match="died"):
        async with Supervisors(backend.recipe, 1) as supervisors:  # type: ignore[arg-type]
            process = supervisors._members[0]._process
            assert process is not None
            process.kill()
            await supervisors.warm_up()
