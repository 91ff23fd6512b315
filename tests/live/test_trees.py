"""Finding what a program started, in the middle of an exec too."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable

import pytest

from warmcell.guest.live import trees

pytestmark = pytest.mark.needs("linux")
ORPHAN = 7


def test_an_orphan_whose_exec_takes_long_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine: it shows no environment for fifty looks."""
    looks, killed = iter([None] * 50), set[int]()

    def record(pids: Iterable[int], number: int) -> None:
        if number == signal.SIGKILL:
            killed.update(pids)

    fields = [b"R", str(os.getpid()).encode(), b"7", b"7", *[b"0"] * 46]
    monkeypatch.setattr(trees, "_pids", lambda: [ORPHAN])
    monkeypatch.setattr(trees, "_fields", lambda pid: fields)
    monkeypatch.setattr(trees, "_mark_of", lambda *_: next(looks, "ours"))
    monkeypatch.setattr(trees, "_signal", record)
    trees.kill(0, "ours")
    assert killed == {ORPHAN}


def test_an_empty_environment_is_not_taken_for_an_exec() -> None:
    with subprocess.Popen(["/bin/sleep", "60"], env={}) as process:
        try:
            deadline = time.monotonic() + 10
            while not (is_sure := trees._look(0, "ours")[1]) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert is_sure
        finally:
            process.kill()
