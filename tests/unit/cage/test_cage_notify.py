"""The manager's answers to calls of guests."""

from __future__ import annotations

import errno
import struct
from typing import Any

import pytest

from warmcell.cage.linux import notify


def test_a_call_that_cannot_be_judged_is_refused_and_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unforeseen error would end the manager, and with it the guests of all others."""
    answers: list[tuple[Any, ...]] = []

    def control(descriptor: int, what: int, data: Any, change: bool = False) -> int:
        if what == notify._RECEIVE:
            struct.pack_into("=QIIi", data, 0, 7, 1, 0, 0)
        else:
            answers.append(struct.unpack("=QqiI", data))
        return 0

    def fail(*_: object) -> int:
        raise ValueError("not a number")

    listener = object.__new__(notify.Listener)
    listener.descriptor = 5
    monkeypatch.setattr(notify.fcntl, "ioctl", control)
    monkeypatch.setattr(listener, "_judge", fail)
    listener.answer()
    assert answers == [(7, 0, -errno.EPERM, 0)]


@pytest.mark.attack("S2-10")
@pytest.mark.claim("WC-RX-3")
def test_attributes_of_files_have_a_limit_of_their_own() -> None:
    """Some file systems store any number of them with a file, and do not count them as its size."""
    listener = notify.Listener(-1, 0)

    def judge(size: int) -> int | None:
        return listener._judge(0, "fsetxattr", 1, (3, 0, 0, size, 0, 0))

    assert judge((1 << 64) - 1) is None  # no limit; and the kernel refuses a longer value than it takes
    listener.attribute_room = 4 << 10
    assert [judge(1 << 10) for _ in range(3)] == [None, None, errno.ENOSPC]
    assert judge(100) is None  # what still fits
    while judge(0) is None:
        pass
    assert judge(0) == errno.ENOSPC and not listener.denials
