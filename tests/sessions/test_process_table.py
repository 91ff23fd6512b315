"""What ended processes keep."""

from __future__ import annotations

import os
from concurrent.futures import Future
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.lifetime.descriptors import Descriptors
from warmcell.sessions.loop import Loop
from warmcell.sessions.processes import ProcessTable
from warmcell.sessions.streams import Output, Ring


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


@pytest.mark.attack("S3-10")
def test_what_is_written_after_the_end_is_bounded_too() -> None:
    """By what an ended process had started: a hundred of them could fill as many rings."""
    loop, table, piece = Loop("unused"), ProcessTable(), bytes(1 << 12)
    with ExitStack() as cleanup:
        cleanup.callback(loop._owned.close)
        outputs: list[tuple[Output, int]] = []
        for number in range(40):
            owned = Descriptors()
            cleanup.callback(owned.close)
            reader, writer = owned.pipe()
            os.set_blocking(reader, False)
            output, finished = Output(loop, "stdout", reader, owned, Ring(1 << 20)), Future[None]()
            process = SimpleNamespace(pid=number, command="", finished=finished, outputs=[output], forget=output.close)
            table.add(process)  # type: ignore[arg-type]
            finished.set_result(None)
            outputs.append((output, writer))
        for output, writer in outputs:
            for _ in range(256):  # a page each: a user with many pipes gets no larger ones
                os.write(writer, piece)
                output._read()
        assert sum(output.ring.size for output, _ in outputs) <= 17 << 20
        assert outputs[-1][0].ring.content == piece * 256 and outputs[0][0].ring.is_truncated
