"""Runs of batches on a node: few run at a time, others wait there, and their results travel together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.helpers import PATIENCE, until_async
from tests.unit.backends.stand_in_nodes import StandInNodes

from warmcell import ExecRequest, ExecResult
from warmcell.backends.ray import cluster, node_service
from warmcell.backends.ray.node_service import BatchRuns
from warmcell.backends.ray.placement import choose

REQUEST = ExecRequest("python", "print(1)", 20)


class Guests:
    """Runs that last until they are let go."""

    def __init__(self, runs: BatchRuns, count: int, at_once: int = 2) -> None:
        self.running = self.most = 0
        self._may_end = asyncio.Semaphore(0)
        self.tasks = [asyncio.create_task(runs.run(self._execute, at_once)) for _ in range(count)]

    async def _execute(self) -> ExecResult:
        self.running += 1
        self.most = max(self.most, self.running)
        await self._may_end.acquire()
        self.running -= 1
        return ExecResult("", "", 0)

    async def let_go(self, count: int) -> None:
        done = sum(task.done() for task in self.tasks) + count
        for _ in range(count):
            self._may_end.release()
        await until_async(lambda: sum(task.done() for task in self.tasks) == done)


async def test_few_run_at_a_time_and_the_others_are_queued() -> None:
    guests = Guests(BatchRuns(), 7)
    await until_async(lambda: guests.running == 2)
    await guests.let_go(7)
    assert guests.most == 2
    assert (await guests.tasks[-1]).queued > 0


async def test_results_wait_for_others_while_the_node_has_enough_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_service, "_HOLD_SECONDS", PATIENCE)
    runs = BatchRuns()
    guests = Guests(runs, 7)
    await until_async(lambda: guests.running == 2)
    holding = asyncio.create_task(runs.hold_results())
    await guests.let_go(2)
    assert not holding.done(), "three runs wait: more than run at a time"
    await guests.let_go(1)
    await holding
    await runs.hold_results()
    await guests.let_go(4)


async def test_results_do_not_wait_while_one_of_two_batches_runs_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_service, "_HOLD_SECONDS", PATIENCE)
    runs = BatchRuns()
    many, few = Guests(runs, 9), Guests(runs, 2, at_once=1)
    await until_async(lambda: many.running == 2 and few.running == 1)
    async with asyncio.timeout(PATIENCE / 2):
        await runs.hold_results()
    await few.let_go(2)
    holding = asyncio.create_task(runs.hold_results())
    await many.let_go(4)
    assert not holding.done()
    await many.let_go(1)
    await holding
    await many.let_go(4)
    assert (many.most, few.most) == (2, 1)


async def test_other_messages_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_service, "_HOLD_SECONDS", PATIENCE)
    runs = BatchRuns()
    guests = Guests(runs, 7)
    await until_async(lambda: guests.running == 2)
    holding = asyncio.create_task(runs.hold_results())
    runs.has_urgent.set()
    await holding
    await guests.let_go(7)


async def test_a_run_that_is_cancelled_while_it_waits_leaves_its_place_to_others() -> None:
    guests = Guests(BatchRuns(), 4)
    await until_async(lambda: guests.running == 2)
    guests.tasks[2].cancel()
    await asyncio.wait([guests.tasks[2]])
    await guests.let_go(3)
    assert (await guests.tasks[3]).exit_code == 0


def test_a_long_line_is_not_searched_for_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = 0

    def count(*values: Any) -> Any:
        nonlocal searches
        searches += 1
        return choose(*values)

    monkeypatch.setattr(cluster, "choose", count)
    with StandInNodes("a", "b").backend() as backend:
        assert len(list(backend.run_many_blocking([REQUEST] * 300))) == 300
    assert searches < 300 * 5
