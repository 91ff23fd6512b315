"""The kernel lists the locks of all guests in one table: reading it must not be charged to one that holds none."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmcell.cage.watching import kernel_memory
from warmcell.cage.watching.kernel_memory import Locks
from warmcell.cage.watching.patience import Patience, TooLong

pytestmark = [pytest.mark.needs("linux"), pytest.mark.claim("WC-RX-8")]


@pytest.fixture(autouse=True)
def many_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of this process, and a table that was not read before. Other tests may have many too."""
    monkeypatch.setattr(kernel_memory, "_table", kernel_memory.LockTable())
    monkeypatch.setattr(kernel_memory, "_LONGEST_READING", (10.0, 10.0))
    with (tmp_path / "x").open("w") as file:
        for at in range(8000):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * at)
        yield


class _CutShort(Patience):
    def read(self, path: str) -> Iterator[bytes]:
        yield from super().read(path)
        raise TooLong


def test_locks_of_others_take_no_time_of_a_guest() -> None:
    """Its own is less than it takes to read them."""
    assert Locks(lambda owner, pids: False).memory([], Patience(0.001, 1.0)) == 0


def test_a_table_that_takes_too_long_is_the_fault_of_who_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_memory, "Patience", _CutShort)
    assert Locks(lambda owner, pids: False).memory([], Patience(10.0, 10.0)) == 0
    with pytest.raises(TooLong):
        Locks(lambda owner, pids: owner == os.getpid()).memory([], Patience(10.0, 10.0))


def test_a_single_long_reading_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a stall of the host. A guest is too large if two looks in a row are long, each with its own reading."""
    own = Locks(lambda owner, pids: owner == os.getpid())
    with monkeypatch.context() as stalled, pytest.raises(TooLong):
        stalled.setattr(kernel_memory, "Patience", _CutShort)
        own.memory([], Patience(10.0, 10.0))
    monkeypatch.setattr(kernel_memory, "_LONGEST_READING", (10.0, 60.0))
    # The kernel passes over some if others release locks between two readings of its table.
    assert own.memory([], Patience(10.0, 10.0)) > 7000 * 256
