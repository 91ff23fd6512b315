"""One log record per run, and nothing without listeners."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys

import pytest

from warmcell import ExecRequest, ExecResult, ProcessBackend
from warmcell.core.errors import BackendBusy, ExecutionTimeout
from warmcell.core.run_record import LOGGER, RunRecord

REQUEST = ExecRequest("python", "print(1)", 5)


def fields(record: logging.LogRecord) -> dict[str, object]:
    names = ("backend", "language", "exit_code", "duration", "queued", "fault", "error")
    return {name: getattr(record, name) for name in names}


def test_a_result_is_reported_whole(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER), RunRecord("process", REQUEST) as record:
        record.result = ExecResult(exit_code=3, duration=0.25, queued=0.5)
    assert [fields(each) for each in caplog.records] == [
        {
            "backend": "process",
            "language": "python",
            "exit_code": 3,
            "duration": 0.25,
            "queued": 0.5,
            "fault": None,
            "error": None,
        }
    ]
    said = "run backend=process language=python exit_code=3 duration=0.25 queued=0.5"
    assert caplog.records[0].getMessage() == said


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ExecutionTimeout(5, ExecResult(exit_code=137, duration=5.0)), (137, 5.0, "guest", "sandbox.timeout")),
        (BackendBusy(60), (None, None, "host", "sandbox.backend_busy")),
        (ValueError("ours"), (None, None, "host", "ValueError")),
        (asyncio.CancelledError(), (None, None, "caller", "CancelledError")),
    ],
    ids=["guest", "host", "bug", "cancelled"],
)
def test_an_error_says_whose_fault_it_was(
    error: BaseException, told: tuple[object, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(type(error)), caplog.at_level(logging.INFO, LOGGER), RunRecord("process", REQUEST):
        raise error
    (record,) = caplog.records
    assert tuple(fields(record)[name] for name in ("exit_code", "duration", "fault", "error")) == told


async def test_a_backend_tells_of_every_run(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        async with ProcessBackend() as backend:
            await backend.execute(REQUEST)
            await asyncio.to_thread(backend.execute_blocking, ExecRequest("command", "exit 4", 5))
    told = [(record.backend, record.language, record.exit_code) for record in caplog.records]  # type: ignore[attr-defined]
    assert told == [("process", "python", 0), ("process", "command", 4)]
    assert all(record.queued > 0 for record in caplog.records)  # type: ignore[attr-defined]


def test_nothing_is_imported_and_nothing_printed_unasked() -> None:
    script = """
import sys
from warmcell import run
run("print(1)")
assert "logging" not in sys.modules
import logging
run("print(1)")
"""
    ended = subprocess.run(
        [sys.executable, "-S", "-c", script], capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
