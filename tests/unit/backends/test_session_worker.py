"""A session's worker in a cage: what ended it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from warmcell.backends.process import session_worker
from warmcell.backends.process.session_worker import CagedWorker
from warmcell.backends.process.started_programs import ProgramExit
from warmcell.lifetime.descriptors import Descriptors


class Program:
    """Ends when it is killed."""

    pid = 2

    def __init__(self) -> None:
        self.ended: Future[ProgramExit] = Future()

    def kill_blocking(self) -> None:
        self.ended.set_result(ProgramExit(9, 0.0, 0))


def test_a_worker_that_goes_on_without_its_connection_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_worker, "GRACE_SECONDS", 0.01)
    program, control = Program(), None
    made: Any = (program, Descriptors(), control, -1, -1)
    assert CagedWorker(*made).reason() == "it closed its connection"
    assert program.ended.done()


def test_a_worker_that_exits_is_not_killed() -> None:
    program, control = Program(), None
    made: Any = (program, Descriptors(), control, -1, -1)
    program.ended.set_result(ProgramExit(3 << 8, 0.0, 0))
    assert CagedWorker(*made).reason() == "its interpreter exited with status 3"
