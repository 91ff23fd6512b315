"""The process that finds a cell's next pid runs beside the guest's own, which may signal it."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from tests.helpers import fork_child

from warmcell.cage.linux import call_list
from warmcell.cage.linux.call_list import SpawnedChild
from warmcell.cage.manager import guest_child

_LONG = 5.0


class _Home:
    """Without privileges: it stays where it is."""

    def enter(self, other: int) -> None:
        """Would need privileges."""

    def return_home(self) -> None:
        """As it never left."""


@pytest.mark.attack("KR-16")
def test_a_guest_that_stops_it_does_not_stop_the_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no cell of that manager starts or ends until the run of that guest times out."""
    rescues: list[threading.Timer] = []
    is_late = threading.Event()

    def rescue(pidfd: int) -> None:
        is_late.set()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def spawn(flags: int, prepared: object) -> SpawnedChild:
        pid = fork_child(signal.pause)
        pidfd = os.pidfd_open(pid)
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        rescues.append(threading.Timer(_LONG, rescue, [pidfd]))
        rescues[0].start()
        return SpawnedChild(pid, pidfd, ())

    monkeypatch.setattr(guest_child, "_pid_home", _Home())
    monkeypatch.setattr(call_list, "can_spawn", lambda: True)
    monkeypatch.setattr(call_list, "spawn", spawn)
    monkeypatch.setattr(guest_child, "_no_next_pid_until", 0.0)
    assert guest_child.next_pid(-1) == 0
    rescues[0].cancel()
    assert not is_late.is_set()
    for _ in range(3):  # nor does it at the end of each of its next runs
        assert guest_child.next_pid(-1) == 0
    assert len(rescues) == 1
