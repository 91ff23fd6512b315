"""Asking a child whether namespaces work: any way it can end but one means no."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from warmcell.enforcers import namespaces_probe

pytestmark = pytest.mark.needs("linux")


def refuse() -> None:
    raise PermissionError("no")


@pytest.mark.parametrize(
    ("what", "expected"), [(lambda: None, True), (refuse, False), (lambda: os.kill(os.getpid(), signal.SIGKILL), False)]
)
def test_a_fork_says_yes_only_after_trying(
    monkeypatch: pytest.MonkeyPatch, what: Callable[[], None], expected: bool
) -> None:
    monkeypatch.setattr(namespaces_probe, "try_out", what)
    before = os.listdir("/proc/self/fd")
    assert namespaces_probe._told_by_fork() is expected
    assert os.listdir("/proc/self/fd") == before


def test_children_that_nobody_waits_for_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces_probe, "try_out", lambda: None)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert namespaces_probe._told_by_fork()
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("new_process", [True, False])
def test_what_a_fork_denies_a_new_process_decides(monkeypatch: pytest.MonkeyPatch, new_process: bool) -> None:
    monkeypatch.setattr(namespaces_probe, "_told_by_fork", lambda: False)
    monkeypatch.setattr(namespaces_probe, "_told_by_new_process", lambda: new_process)
    assert namespaces_probe.works() is new_process


def test_nothing_is_forked_beside_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces_probe, "_told_by_fork", lambda: pytest.fail("forked"))
    monkeypatch.setattr(namespaces_probe, "_told_by_new_process", lambda: True)
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    try:
        assert namespaces_probe.works()
    finally:
        end.set()
        other.join()


@pytest.mark.needs("user namespaces")
def test_both_ways_agree() -> None:
    assert namespaces_probe._told_by_fork() and namespaces_probe._told_by_new_process()
