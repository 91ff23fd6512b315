"""The pipes of a command that a guest starts."""

from __future__ import annotations

import errno
import os

import pytest
from tests.helpers import open_descriptors

pytest.importorskip("wasmtime")

from wasm.host_calls import NestedOutput


def test_output_for_which_there_is_no_room_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker serves many runs, and a guest may ask for commands as often as it likes."""
    makers = [os.pipe]

    def make_pipe() -> tuple[int, int]:
        if not makers:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return makers.pop()()

    monkeypatch.setattr(os, "pipe", make_pipe)
    before = open_descriptors()
    with pytest.raises(OSError, match="Too many open files"):
        NestedOutput(100)
    assert not makers and open_descriptors() <= before
