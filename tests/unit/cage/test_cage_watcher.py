"""The watcher's books: the end of one cell is no end of another's watch."""

from __future__ import annotations

import os
import socket
import time
from typing import NoReturn

import pytest

from warmcell.cage.cell import CODE_DIRECTORY, PROCESSES
from warmcell.cage.plan import LaunchPlan, Watch
from warmcell.cage.watching import watcher
from warmcell.cage.watching.loop import Loop, _Cell


@pytest.mark.attack("RX-02")
def test_a_descriptor_whose_number_was_used_before_is_still_waited_for() -> None:
    """Else the second cell is never looked at, and its guest takes as much memory as the host has."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        loop = Loop(theirs)
        begun, go = os.pipe()
        for number in (1, 2):  # the first has begun, and what it had waited on was called by the same number
            files = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
            loop._cells[number] = _Cell(Watch(), 0, files[0], begun, files[1], files[2])
        loop._waiting[begun] = 2
        loop._poll.register(begun)
        loop._forget(1)
        assert loop._waiting == {begun: 2}
        os.close(go)
        assert begun in dict(loop._poll.poll(0))
        loop._forget(2)
        assert loop._waiting == {}
        with pytest.raises(OSError):
            os.fstat(begun)


@pytest.mark.attack("S2-10")
def test_no_guest_begins_before_the_watcher_can_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had written by then would be taken for what was there already."""
    became = watcher._be_watcher

    def late(channel: socket.socket) -> NoReturn:
        time.sleep(0.5)
        became(channel)

    monkeypatch.setattr(watcher, "_be_watcher", late)
    assert _seconds_to_watch(watcher.Watcher()) >= 0.5


def test_a_watcher_that_dies_at_once_watches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_be_watcher", lambda channel: os._exit(1))
    with pytest.raises(OSError, match="did not come up"):
        _seconds_to_watch(watcher.Watcher())


def _seconds_to_watch(manager_end: watcher.Watcher) -> float:
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
    given = {PROCESSES: files[2], CODE_DIRECTORY: files[3]}
    started = time.monotonic()
    try:
        manager_end.watch(LaunchPlan(watch=Watch(disk_bytes=1)), files[0], files[1], given)
        return time.monotonic() - started
    finally:
        manager_end.let_go()
        os.waitpid(manager_end.pid, 0)
        for descriptor in files:
            os.close(descriptor)
