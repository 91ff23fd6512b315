"""Progress on terminals only, pipes that break, output that cannot be written."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time

import pytest

from warmcell.interfaces.cli import voice

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


def shown_while(stream: io.StringIO, seconds: float, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(voice, "PROGRESS_AFTER", 0.05)
    with voice.Progress("compiling rust"):
        time.sleep(seconds)
    return stream.getvalue()


def test_a_long_job_shows_a_line_and_takes_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = shown_while(Terminal(), 0.3, monkeypatch)
    assert "compiling rust ... 0 s" in shown
    assert shown.endswith("\r\x1b[2K")


def test_a_quick_job_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert shown_while(Terminal(), 0, monkeypatch) == ""


@pytest.mark.parametrize(("stream", "terminal"), [(io.StringIO(), "xterm"), (Terminal(), "dumb")])
def test_nothing_is_shown_where_it_would_stay(
    stream: io.StringIO, terminal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", terminal)
    assert shown_while(stream, 0.2, monkeypatch) == ""


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


@pytest.mark.parametrize(("stream", "is_shown"), [(Terminal(), True), (io.StringIO(), False)], ids=["tty", "pipe"])
def test_a_bar_shows_how_many_are_done_and_goes(
    stream: io.StringIO, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    with voice.Bar(4, "judged") as bar:
        for _ in range(2):
            bar.advance()
    shown = stream.getvalue()
    assert ("[###############...............] 2/4 judged" in shown, shown.endswith("\r\x1b[2K")) == (is_shown, is_shown)
