"""Processor time of a cell, from files as the kernel writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warmcell.cage.plan import Watch
from warmcell.cage.watching import ceilings, patience

TICK = os.sysconf("SC_CLK_TCK")


def put(proc: Path, pid: int, parent: int, seconds: float, waited: float = 0.0) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    fields = ["R", str(parent), *["0"] * 9, str(int(seconds * TICK)), "0", str(int(waited * TICK)), *["0"] * 30]
    (proc / str(pid) / "stat").write_text(f"{pid} (a) {' '.join(fields)}\n")


def test_the_end_of_the_guest_does_not_count_its_time_twice(tmp_path: Path) -> None:
    """The manager reaps it and reports its time; a look in between must not take that time for lost."""
    tree = ceilings.Tree(str(tmp_path), lambda: [2], lambda *_: 0, (), ceilings.Network(str(tmp_path), is_own=True))
    kept = ceilings.Ceilings(Watch(cpu_seconds=1.0), tree)
    put(tmp_path, 2, 0, 0.6)
    put(tmp_path, 3, 2, 0.2)
    assert kept._cpu_used([2, 3]) == 0.8
    assert kept._cpu_used([3]) == 0.8
    assert kept.cpu_lost == 0.0
    put(tmp_path, 4, 1, 0.3)  # left to init, which reports nothing
    kept._cpu_used([4])
    assert kept._cpu_used([]) == 0.6 + 0.2 + 0.3
    assert round(kept.cpu_lost, 6) == 0.5


@pytest.mark.parametrize(
    ("cpu_seconds", "processors", "pause"),
    [(0, 16, 0.1), (10.0, 16, 0.1), (1.0, 16, 1 / 32), (0.1, 16, 0.02), (1.0, 2, 0.1), (0.1, 1, 0.05)],
)
def test_until_the_first_look_a_guest_cannot_use_more_than_half_of_its_processor_time(
    cpu_seconds: float, processors: int, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the time between two looks, if that is more."""
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    watch = Watch(cpu_seconds=cpu_seconds)
    assert patience.pause_before_first_look(watch) == pytest.approx(pause)
    assert patience.pause_before_look(watch) == (0.02 if cpu_seconds else 0.1)
