"""What ended processes keep."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.sessions.processes import ProcessTable


@pytest.mark.attack("S3-10")
def test_ended_processes_keep_the_beginning_of_their_command() -> None:
    table = ProcessTable()
    made: list[Any] = []
    for number in range(150):
        finished: Future[None] = Future()
        process = SimpleNamespace(pid=number, command="x" * 100_000, finished=finished, outputs=[], forget=lambda: None)
        table.add(process)  # type: ignore[arg-type]
        made.append(process)
    for process in made[:120]:
        process.finished.set_result(None)
    kept = [len(process.command) for process in table.all()]
    assert kept == [4096] * 100 + [100_000] * 30
