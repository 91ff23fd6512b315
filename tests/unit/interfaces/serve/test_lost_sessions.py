"""Saved sessions that a server cannot restore now are kept; those that it never can are lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from warmcell.core.errors import BackendBusy
from warmcell.interfaces.serve.saved_sessions import SavedSessions
from warmcell.interfaces.serve.saved_state import SavedState
from warmcell.sessions.image import SessionImage

CALLS = ("open", "memfd_create")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SavedState]:
    made = SavedState(str(tmp_path), 0, None)
    yield made
    made.close()


def saved_in(state: SavedState, image: str) -> SavedSessions:
    sandbox = SimpleNamespace(limits=SimpleNamespace(memory_mb=1))
    saved = SavedSessions(state, cast(Any, SimpleNamespace(id="a", sandbox=sandbox)), lambda: None)
    saved.load({"sessions": [{"plain": {"id": "s"}, "own": {}, "image": image}]})
    return saved


@pytest.mark.parametrize("call", CALLS)
async def test_a_session_for_which_descriptors_are_short_is_kept(
    state: SavedState, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The next request tries again. It was lost for good, and its variables were removed."""
    with SessionImage(100) as image:
        image.add(b"variables")
        name = state.keep_image(image)
    saved = saved_in(state, name)

    def fail(*_: object, **__: object) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(BackendBusy):
            await saved.restore()
    assert len(saved.waiting) == 1 and not saved.lost
    assert os.listdir(os.path.join(state.path, "sessions")) == [name]


async def test_a_session_without_an_image_is_lost(state: SavedState) -> None:
    saved = saved_in(state, "0" * 32)
    await saved.restore()
    assert not saved.waiting and list(saved.lost) == ["s"]
