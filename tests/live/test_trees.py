"""Finding what a program started, in the middle of an exec too."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable

import pytest
from tests.helpers import until

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


def test_a_pause_waits_for_a_program_that_is_in_the_middle_of_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not stop before its child exists, which ran on in the paused cage."""
    looks, stopped = iter([False] * 50), set[int]()
    has_stopped = {ORPHAN: False}

    def look(pid: int) -> bool:
        has_stopped[ORPHAN] = next(looks, True)
        return has_stopped[ORPHAN]

    monkeypatch.setattr(trees, "_pids", lambda: [ORPHAN, ORPHAN + 1] if has_stopped[ORPHAN] else [ORPHAN])
    monkeypatch.setattr(trees, "_has_stopped", look)
    monkeypatch.setattr(trees, "_signal", lambda pids, number: stopped.update(pids))
    assert trees.pause_all(set()) == stopped == {ORPHAN, ORPHAN + 1}


def test_a_process_has_stopped_when_its_state_says_so() -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        try:
            assert not trees._has_stopped(process.pid)
            process.send_signal(signal.SIGSTOP)
            until(lambda: trees._has_stopped(process.pid))
        finally:
            process.kill()
    assert trees._has_stopped(process.pid)  # it has ended


def test_an_empty_environment_is_not_taken_for_an_exec() -> None:
    with subprocess.Popen(["/bin/sleep", "60"], env={}) as process:
        try:
            deadline = time.monotonic() + 10
            while not (is_sure := trees._look(0, "ours")[1]) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert is_sure
        finally:
            process.kill()
