"""How long the report on a guest that is gone is waited for, its last output, and a guest that does not read its job."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.cage.wire import GuestJob
from warmcell.lifetime.run import Run, RunCancelled
from warmcell.runner import cell as cells
from warmcell.runner import pump
from warmcell.runner.cell import Cell, CellLost
from warmcell.runner.not_started import JOB_UNREAD, JobUnread


class _Cell:
    """Its report is whatever arrives; the other end belongs to its manager."""

    def __init__(self) -> None:
        self.status, self.manager = socket.socketpair()
        self.report: bytes | None = None

    def receive_message(self) -> None:
        self.report = self.status.recv(16) or None
        if self.report is None:
            raise CellLost("the cell ended")

    def close(self) -> None:
        self.status.close()
        self.manager.close()


def _wait(cell: _Cell, *, is_cancelled: bool) -> None:
    waiting: Any = SimpleNamespace(_cell=cell, _run=SimpleNamespace(is_cancelled=is_cancelled))
    pump.Pump._receive_late_report(waiting)


def test_a_report_that_comes_late_is_received(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an overloaded host, the watcher that a manager has to ask first may be slow."""
    monkeypatch.setattr(pump, "_CANCELLED_SECONDS", 0.0)
    monkeypatch.setattr(pump, "_REPORT_POLL_MS", 1)
    cell = _Cell()
    threading.Timer(0.2, cell.manager.send, [b"report"]).start()
    _wait(cell, is_cancelled=False)
    assert cell.report == b"report"
    cell.close()


def test_a_cancelled_run_waits_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "_CANCELLED_SECONDS", 0.0)
    cell = _Cell()
    _wait(cell, is_cancelled=True)
    assert cell.report is None
    cell.close()


def test_a_dead_manager_is_noticed_at_once() -> None:
    cell = _Cell()
    cell.manager.close()
    _wait(cell, is_cancelled=False)
    assert cell.report is None
    cell.close()


class _Endless:
    """The output of a guest that has killed its keeper and writes on."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self, descriptor: int) -> bool:
        self.reads += 1
        assert self.reads < 1 << 20
        return True


def test_the_last_output_is_not_read_for_ever() -> None:
    outputs = {3: _Endless(), 4: _Endless()}
    cell = SimpleNamespace(report={}, start_failure="", await_end=lambda seconds: True)
    finishing: Any = SimpleNamespace(
        _cell=cell, _is_lost=True, _captures=outputs, _ended={4}, _throttle=None, _started_at=1.0, _outputs=(3, 4)
    )
    end = pump.Pump._finish(finishing, "")
    assert end.stdout is outputs[3] and end.status is None
    assert outputs[3].reads > 1 and outputs[4].reads == 0


@pytest.fixture
def unread() -> Iterator[Cell]:
    """A cell whose guest, as a hostile image's Python, was started and never reads its job."""
    cell = Cell("native")
    cell.send_job(GuestJob("prelude", ("/usr/bin/python3",), {}, "/code", {}))
    yield cell
    cell.close()


_LONG_JOB = GuestJob("exec", (), {}, "/code", {"main.py": bytes(8 << 20)}, "main.py")


def test_a_job_that_is_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "_READ_SECONDS", 0.05)
    cell = Cell("native")
    cell.send_job(GuestJob("prelude", ("/usr/bin/python3",), {}, "/code", {}))
    with pytest.raises(JobUnread, match="did not read"):
        cell.send_job(_LONG_JOB, Run())
    cell.close()


def test_a_job_that_is_not_read_can_be_cancelled(unread: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "ask_to_stop", unread._close_theirs)  # what the kernel does when the guest is killed
    run = Run()
    threading.Timer(0.1, run.cancel).start()
    with pytest.raises(RunCancelled):
        unread.send_job(_LONG_JOB, run)


@pytest.mark.attack("S2-28")
@pytest.mark.parametrize("said", [b"no number", b"9" * 5000 + b" x", b"2 " + bytes(20_000), b"\xff"])
def test_what_is_no_failure_of_ours_is_a_job_that_was_not_read(unread: Cell, said: bytes) -> None:
    """An image's own Python, which waits for the job, can write to the channel."""
    theirs = unread._theirs[0]
    while said:
        said = said[os.write(theirs, said[:4096]) :]
        assert not unread.receive_start() and len(unread.start_failure) <= 8192
    assert unread.start_failure == JOB_UNREAD


def test_the_start_is_looked_for_without_waiting(unread: Cell) -> None:
    unread.send_job(GuestJob("exec", (), {}, "/code", {}), Run())
    assert not unread.receive_start()
