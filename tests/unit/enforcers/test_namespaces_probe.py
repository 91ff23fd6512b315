"""Asking a child whether namespaces work: failures name the step and the errno, in every way of asking."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import threading

import pytest
from tests.helpers import open_descriptors
from tests.unit.enforcers.failing_calls import failing

from warmcell.cage.failure import CageError
from warmcell.enforcers import namespaces_probe

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]


@pytest.mark.parametrize("way", ["_ask_by_spawn", "_ask_by_new_process"])
def test_every_way_says_yes_and_leaves_nothing(way: str) -> None:
    before = open_descriptors()
    assert getattr(namespaces_probe, way)() is None
    assert open_descriptors() <= before


def test_a_failure_names_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces_probe, "_attempts", lambda: failing("mount own proc", errno.EBADF))
    refusal = namespaces_probe.refusal()
    assert refusal is not None and (refusal.step, refusal.errno) == ("mount own proc", errno.EBADF)


def test_where_memory_may_not_be_executed_a_clone_tells_the_same() -> None:
    """In a process of its own, since it makes a copy of it."""
    code = (
        "from warmcell.enforcers import namespaces_probe as probe\n"
        "from tests.unit.enforcers.failing_calls import failing\n"
        "print(probe._ask_by_clone())\n"
        "probe._attempts = lambda: failing('mount scratch', 9)\n"
        "print(probe._ask_by_clone())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["None", "mount scratch: : Bad file descriptor"]


def test_children_that_are_never_waited_for_do_not_matter() -> None:
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
        assert namespaces_probe._ask_by_spawn() is None
    finally:
        end.set()
        other.join()


@pytest.mark.parametrize("answer", [None, CageError("map own user", errno.EPERM, "")])
def test_a_process_that_changed_users_asks_a_new_process(
    monkeypatch: pytest.MonkeyPatch, answer: CageError | None
) -> None:
    monkeypatch.setattr(namespaces_probe, "_ask_by_spawn", lambda: CageError("map own user", errno.EACCES, ""))
    monkeypatch.setattr(namespaces_probe, "_ask_by_new_process", lambda: answer)
    assert namespaces_probe.refusal() is answer
