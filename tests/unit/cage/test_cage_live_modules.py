"""Modules of live cages that the zygote loads: complete, named as in the cage, and hidden from other guests."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conftest import ROOT

from warmcell.cage.zygote import live_modules

LIVE = ROOT / "src/warmcell/guest/live"


def test_the_modules_are_loaded_and_hidden() -> None:
    before, finders = dict(sys.modules), list(sys.meta_path)
    found = live_modules.load(str(LIVE))
    assert sys.modules == before and sys.meta_path == finders
    agent, preloaded = found["warmcell_live.agent"], found["warmcell_live.preloaded"]
    assert agent.__file__ == agent.main.__code__.co_filename == "/code/live/agent.py"
    assert str(ROOT) not in repr([vars(module.__spec__) for module in found.values() if module.__spec__])
    assert set(preloaded.modules) == {"python_session", "session_image"}
    assert "warmcell_live.python_session" not in found
    assert not hasattr(found["warmcell_live"], "python_session") and hasattr(found["warmcell_live"], "agent")
    assert "warmcell_live.session_image" in preloaded.modules["session_image"]
    assert "warmcell_live.session_image" not in preloaded.modules["python_session"]


def test_nothing_is_left_when_they_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("from . import frames\n")
    (tmp_path / "frames.py").write_text("raise ValueError\n")
    before, finders = dict(sys.modules), list(sys.meta_path)
    assert live_modules.load(str(tmp_path)) == live_modules.load(str(tmp_path / "missing")) == {}
    assert sys.modules == before and sys.meta_path == finders
