"""The budget for warm cells of all backends of a program, by its limit on descriptors."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import open_descriptors

from warmcell.pool import supply as module
from warmcell.pool.pool import Pool
from warmcell.pool.supply import IDLE_SECONDS, WarmCellBudget, most_waiting
from warmcell.runner.cgroups import Group, GroupLimits


class Holder:
    def __init__(self, waiting: int, idle: float = 0.0) -> None:
        self.waiting = waiting
        self.last_used = time.monotonic() - idle

    def ready(self) -> list[int]:
        return list(range(self.waiting))

    def shed(self) -> bool:
        self.waiting = 0
        return True


@pytest.mark.parametrize(
    ("others", "has_place", "left"),
    [
        ([], True, []),
        ([(3, 0)], True, [3]),
        ([(4, 0)], False, [4]),
        ([(4, IDLE_SECONDS - 5)], False, [4]),
        ([(4, IDLE_SECONDS + 5)], True, [0]),
        ([(1, IDLE_SECONDS + 5), (1, IDLE_SECONDS + 9), (2, 0)], True, [1, 0, 2]),
        ([(0, IDLE_SECONDS + 9), (4, 0)], False, [0, 4]),
    ],
    ids=["nobody", "room", "full", "not idle yet", "idle", "idlest", "idle and empty"],
)
def test_an_idle_pool_makes_room_and_a_busy_one_does_not(
    monkeypatch: pytest.MonkeyPatch, others: list[tuple[int, float]], has_place: bool, left: list[int]
) -> None:
    monkeypatch.setattr(module, "most_waiting", lambda _: 4)
    room: Any = WarmCellBudget()
    asking = Holder(0, 99)
    demands = [Holder(*other) for other in others]  # here, and not in the table: they idle from now on
    for demand in (asking, *demands):
        room.enter(demand)
    assert room.has_room_for(asking, 8) is has_place
    assert [demand.waiting for demand in demands] == left


def test_a_pool_does_not_make_room_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "most_waiting", lambda _: 4)
    room: Any = WarmCellBudget()
    asking = Holder(4, 99)
    room.enter(asking)
    assert not room.has_room_for(asking, 8) and asking.waiting == 4


@pytest.mark.parametrize(
    ("allowed", "each", "most"),
    [(20, 8, 0), (256, 8, 8), (1024, 8, 32), (1024, 12, 21), (65_536, 8, 256), (resource.RLIM_INFINITY, 8, 256)],
)
def test_a_quarter_of_what_may_be_open(monkeypatch: pytest.MonkeyPatch, allowed: int, each: int, most: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
    assert most_waiting(each) == most


def test_of_many_groups_that_wait_to_be_removed_few_have_files_open(tmp_path: Path) -> None:
    """A program with many runs at once needs its descriptors for them."""
    pool = Pool(0, 4, None)
    before = open_descriptors()
    for number in range(6):
        group = Group({"": str(tmp_path)}, f"cell-{number}", GroupLimits(64 << 20, 17))
        for name in ("memory.peak", "cpu.stat", "memory.events", "pids.events"):
            (tmp_path / f"cell-{number}" / name).write_text("")
        group.open_counters()
        pool._keep_group(group)
    assert len(open_descriptors() - before) == 2 * 4
    for path in tmp_path.glob("*/*"):
        path.unlink()
    pool.close()
    assert open_descriptors() <= before and list(tmp_path.iterdir()) == []
