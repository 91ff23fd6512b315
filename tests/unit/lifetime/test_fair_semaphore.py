"""Slots that tenants share: turns, shares, bounded lines."""

from __future__ import annotations

import asyncio

import pytest

from warmcell.core.errors import BackendBusy
from warmcell.lifetime.fair_semaphore import FairSemaphore, TooManyWaiting

FOR_EVER = 60.0


class Club:
    """Records the order in which visitors got a slot; they keep it until released."""

    def __init__(self, most: int, longest: int = 100, share: int = 100) -> None:
        self.queue, self.share = FairSemaphore(most, longest), share
        self.inside: list[str] = []
        self.doors: dict[str, asyncio.Event] = {}
        self.visits: dict[str, asyncio.Task[None]] = {}

    async def come(self, *names: str, timeout: float = FOR_EVER) -> None:
        for name in names:
            self.doors[name] = asyncio.Event()
            self.visits[name] = asyncio.create_task(self._visit(name, timeout))
            await asyncio.sleep(0)

    async def _visit(self, name: str, timeout: float) -> None:
        async with self.queue.slot(name[0], self.share, timeout):
            self.inside.append(name)
            await self.doors[name].wait()

    async def leave(self, name: str) -> None:
        self.doors[name].set()
        await self.visits[name]
        for _ in range(5):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for visit in self.visits.values():
            visit.cancel()
        await asyncio.gather(*self.visits.values(), return_exceptions=True)


async def test_one_request_waits_for_one_run_not_for_a_crowd() -> None:
    club = Club(most=1)
    await club.come("a1", "a2", "a3", "a4", "b1")
    for name in ("a1", "a2", "b1", "a3"):
        await club.leave(name)
    assert club.inside == ["a1", "a2", "b1", "a3", "a4"]
    await club.close()


async def test_more_slots_are_given_at_once_and_fewer_as_they_are_released() -> None:
    club = Club(most=1)
    await club.come("a1", "a2", "b1", "a3")
    club.queue.resize(3)
    for _ in range(5):
        await asyncio.sleep(0)
    assert club.inside == ["a1", "a2", "b1"]
    club.queue.resize(1)
    await club.leave("a1")
    await club.leave("a2")
    assert club.inside == ["a1", "a2", "b1"]
    await club.leave("b1")
    assert club.inside == ["a1", "a2", "b1", "a3"]
    await club.close()


async def test_no_tenant_has_more_than_its_share() -> None:
    club = Club(most=3, share=2)
    await club.come("a1", "a2", "a3", "b1")
    assert club.inside == ["a1", "a2", "b1"]
    await club.leave("b1")
    assert club.inside == ["a1", "a2", "b1"]
    await club.leave("a1")
    assert club.inside == ["a1", "a2", "b1", "a3"]
    await club.close()


async def test_the_line_is_bounded_and_one_tenant_gets_half_of_it() -> None:
    club = Club(most=1, longest=4)
    await club.come("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    with pytest.raises(TooManyWaiting):
        await club.visits["a4"]
    with pytest.raises(BackendBusy):
        await club.visits["c1"]
    assert club.queue.waiting == 4
    await club.close()
    assert club.queue.waiting == 0


async def test_a_waiter_that_times_out_or_leaves_takes_no_slot() -> None:
    club = Club(most=1)
    await club.come("a1")
    await club.come("a2", timeout=0.01)
    with pytest.raises(BackendBusy):
        await club.visits["a2"]
    await club.come("a3", "b1")
    club.visits["a3"].cancel()
    await asyncio.sleep(0)
    await club.leave("a1")
    assert club.inside == ["a1", "b1"]
    await club.leave("b1")
    await club.come("c1")
    assert club.inside[-1] == "c1"
    await club.close()
