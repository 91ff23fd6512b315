"""Connections that the manager makes for a guest: the guest has the socket too, and may change it meanwhile."""

from __future__ import annotations

import errno
import os
import socket
import struct
from pathlib import Path

import pytest
from tests.helpers import in_a_fork

from warmcell.cage.linux import notify, syscalls


@pytest.mark.needs("linux")
@pytest.mark.attack("RX-16")
def test_a_guest_cannot_make_the_manager_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no cell of that manager starts or ends until the run of that guest times out."""
    place = str(tmp_path / "s")

    def connect() -> int:
        listener, first, second = (socket.socket(socket.AF_UNIX) for _ in range(3))
        listener.bind(place)
        listener.listen(0)
        first.connect(place)  # the backlog is full

        def call(name: str, *arguments: object) -> int:
            if name == "connect":  # what another thread of the guest does
                second.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 0, 0))
            return syscalls.call(name, *arguments)

        monkeypatch.setattr(notify, "call", call)
        monkeypatch.setattr(notify, "copy_of", lambda thread, descriptor: os.dup(descriptor))
        address = struct.pack("=H", socket.AF_UNIX) + place.encode() + b"\0"
        return notify.connect(os.getpid(), second.fileno(), address, os.stat(place).st_dev)

    assert in_a_fork(connect, 20) == errno.EINTR
