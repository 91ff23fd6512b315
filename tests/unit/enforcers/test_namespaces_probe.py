"""Asking a child whether namespaces work: what it could not do is told by step and errno, in every way of asking."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from warmcell.cage.failure import CageError
from warmcell.cage.linux import call_list
from warmcell.enforcers import namespaces_probe

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]


def failing(step: str, number: int) -> call_list.CallList:
    """Nothing but a call that fails."""
    calls = call_list.CallList()
    calls.part(step)
    calls.call("close", -1 if number == errno.EBADF else 0)
    return calls


@pytest.mark.parametrize("way", ["_told_by_spawn", "_told_by_new_process"])
def test_every_way_says_yes_and_leaves_nothing(way: str) -> None:
    before = os.listdir("/proc/self/fd")
    assert getattr(namespaces_probe, way)() is None
    assert os.listdir("/proc/self/fd") == before


def test_what_fails_is_told_by_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces_probe, "_attempts", lambda: failing("mount own proc", errno.EBADF))
    refusal = namespaces_probe.refusal()
    assert refusal is not None and (refusal.step, refusal.errno) == ("mount own proc", errno.EBADF)


def test_where_memory_may_not_be_executed_a_clone_tells_the_same() -> None:
    """In a process of its own, since it makes a copy of it."""
    code = (
        "from warmcell.enforcers import namespaces_probe as probe\n"
        "from tests.unit.enforcers.test_namespaces_probe import failing\n"
        "print(probe._told_by_clone())\n"
        "probe._attempts = lambda: failing('mount scratch', 9)\n"
        "print(probe._told_by_clone())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["None", "mount scratch: : Bad file descriptor"]


def test_children_that_nobody_waits_for_do_not_matter() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert namespaces_probe.refusal() is None
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_other_threads_do_not_matter() -> None:
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    try:
        assert namespaces_probe._told_by_spawn() is None
    finally:
        end.set()
        other.join()


@pytest.mark.parametrize("answer", [None, CageError("map own user", errno.EPERM, "")])
def test_who_changed_users_is_told_by_a_new_process(monkeypatch: pytest.MonkeyPatch, answer: CageError | None) -> None:
    monkeypatch.setattr(namespaces_probe, "_told_by_spawn", lambda: CageError("map own user", errno.EACCES, ""))
    monkeypatch.setattr(namespaces_probe, "_told_by_new_process", lambda: answer)
    assert namespaces_probe.refusal() is answer
