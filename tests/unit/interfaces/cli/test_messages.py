"""Progress on terminals only, pipes that break, output that cannot be written."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from tests.helpers import PATIENCE, until

from warmcell.core import slow_steps
from warmcell.interfaces.cli import messages

#: The real command over a scripted backend, in a process of its own.
COMMAND = """
import sys, types
from warmcell import ExecResult, FakeBackend
module = types.ModuleType("warmcell.backends.process.backend")
module.ProcessBackend = lambda **options: FakeBackend([ExecResult(stdout="x" * 1_000_000, exit_code=3)])
sys.modules["warmcell.backends.process.backend"] = module
from warmcell.interfaces.cli import main
sys.exit(main(["run", "python", "-c", "1"]))
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show_progress(stream: io.StringIO, after: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is shown on `stream` after so many seconds. It is always 0 s, however late it is shown."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(messages, "PROGRESS_AFTER", after)
    monkeypatch.setattr(messages, "time", SimpleNamespace(monotonic=lambda: 0.0))


def capture_progress(stream: io.StringIO, after: float, monkeypatch: pytest.MonkeyPatch) -> str:
    show_progress(stream, after, monkeypatch)
    with messages.Progress("compiling rust"):
        time.sleep(0.2)
    return stream.getvalue()


def test_a_long_job_shows_a_line_and_takes_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    show_progress(stream, 0.05, monkeypatch)
    with messages.Progress("compiling rust"):
        until(lambda: "compiling rust ... 0 s" in stream.getvalue())
    assert stream.getvalue().endswith("\r\x1b[2K")


def test_a_quick_job_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert capture_progress(Terminal(), PATIENCE, monkeypatch) == ""


@pytest.mark.parametrize(("stream", "terminal"), [(io.StringIO(), "xterm"), (Terminal(), "dumb")])
def test_nothing_is_shown_where_it_would_stay(
    stream: io.StringIO, terminal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", terminal)
    assert capture_progress(stream, 0.05, monkeypatch) == ""


def test_quiet_leaves_the_errors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(messages, "_is_quiet", True)
    terminal = Terminal()
    assert capture_progress(terminal, 0.05, monkeypatch) == ""
    messages.say_warning("stdout was truncated")
    messages.say_note("3 MB freed")
    assert terminal.getvalue() == ""
    messages.say_error("cannot read")
    assert "cannot read" in terminal.getvalue()


@pytest.mark.parametrize(("variable", "expected"), [("", "\x1b[1;31merror:\x1b[0m no\n"), ("1", "error: no\n")])
def test_errors_have_a_color_on_terminals_only(variable: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", variable)
    for stream, text in ((Terminal(), expected), (io.StringIO(), "error: no\n")):
        monkeypatch.setattr(sys, "stderr", stream)
        messages.say_error("no")
        assert stream.getvalue() == text


@pytest.mark.parametrize(
    ("stream", "expected"), [(Terminal(), "compiling Go ... 0 s"), (io.StringIO(), "note: compiling Go\n")]
)
def test_a_step_that_is_slow_once_is_named(stream: io.StringIO, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the usual line on a terminal, as a note elsewhere."""
    monkeypatch.setenv("TERM", "xterm")
    show_progress(stream, 0.05, monkeypatch)
    with messages.Progress("running"):
        slow_steps.report_slow_step("compiling Go")
        until(lambda: expected in stream.getvalue())


def test_a_slow_step_that_nobody_shows_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    slow_steps.report_slow_step("compiling Go")
    assert caplog.messages == ["compiling Go"]


def test_a_reader_that_leaves_is_not_a_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND], stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert ended.returncode == 141
    assert ended.stderr == b""


@pytest.mark.needs("linux")
def test_a_full_disk_is_said_once() -> None:
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-c", COMMAND], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert ended.returncode == 125
    assert ended.stderr == b"error: no space left on device\n"


def test_without_stdout_the_status_is_still_the_guests() -> None:
    script = f"import os; os.close(1); os.execv({sys.executable!r}, [{sys.executable!r}, '-c', {COMMAND!r}])"
    ended = subprocess.run([sys.executable, "-c", script], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (3, b"")
