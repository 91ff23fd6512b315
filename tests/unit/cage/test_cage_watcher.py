"""The watcher's books: the end of one cell is no end of another's watch."""

from __future__ import annotations

import os
import socket

import pytest

from warmcell.cage.plan import Watch
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
