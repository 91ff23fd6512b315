"""One log record per run, and nothing without listeners."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

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


SLOW_IMPORT = """
import os, sys, threading, time
from warmcell.core.run_record import RunRecord
from warmcell.core.types import ExecRequest
from warmcell.lifetime.held_directories import create_held_directory
assert not {"logging", "tempfile"} & sys.modules.keys(), "the test needs modules that are imported late"
for name in ("logging", "tempfile"):
    thread = threading.Thread(target=__import__, args=(name,))
    thread.start()
    while name not in sys.modules:
        time.sleep(0.001)
    with RunRecord("process", ExecRequest("python", "1", 1)):
        pass
    held = create_held_directory("warmcell-test-")
    thread.join()
    os.rmdir(held.path)
"""


def test_a_run_waits_for_a_module_that_another_thread_is_importing(tmp_path: Path) -> None:
    """It used what was there of it: one of many thousand runs failed with an AttributeError."""
    for name in ("logging", "tempfile"):
        (tmp_path / f"{name}.py").write_text(
            "import os, time\ntime.sleep(0.5)\nINFO = 20\ntempdir = None\n"
            "def getLogger(name):\n    return type('Logger', (), {'isEnabledFor': lambda *_: False})()\n"
            "def gettempdir():\n    return os.environ['TMPDIR']\n"
            "def mkdtemp(prefix, dir):\n"
            "    os.mkdir(made := os.path.join(dir or gettempdir(), prefix + 'x'))\n    return made\n"
        )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SLOW_IMPORT], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
