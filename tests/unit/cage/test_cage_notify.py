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
