"""A progress bar for every kind of stderr."""

from __future__ import annotations

import asyncio
import io
import sys

import pytest

from warmcell import ExecRequest, FakeBackend
from warmcell.backends import progress
from warmcell.backends.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show_on(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_a_plain_bar_on_a_terminal_is_removed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = show_on(Terminal(), monkeypatch)
    monkeypatch.setattr(progress, "_rich_progress", lambda: None)
    with ProgressBar("judged", 4) as bar:
        bar.advance()
        bar.advance()
    assert "[###############...............] 2/4 judged" in stderr.getvalue()
    assert stderr.getvalue().endswith("\r\x1b[2K")


def test_rich_draws_the_bar_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    stderr = show_on(Terminal(), monkeypatch)
    with ProgressBar("judged", 4) as bar:
        bar.update(2)
        bar.update(4, 4)
    assert "judged" in stderr.getvalue() and "4/4" in stderr.getvalue()


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = show_on(io.StringIO(), monkeypatch)
    with ProgressBar("done", 3) as bar:
        bar.advance()
        assert stderr.getvalue() == ""
        bar._next_line = 0.0
        bar.advance()
        bar.advance()
    assert stderr.getvalue() == "2/3 done\n"


def test_run_many_reports_progress() -> None:
    seen: list[tuple[int, int | None]] = []

    async def run(requests: list[ExecRequest]) -> None:
        async for _ in FakeBackend(["x"] * 3).run_many(requests, on_progress=lambda *done: seen.append(done)):
            pass

    asyncio.run(run([ExecRequest("python", "x", 1)] * 3))
    assert seen == [(1, 3), (2, 3), (3, 3)]
