"""Modules of live cages that the zygote loads: complete, named as in the cage, and hidden from other guests."""

from __future__ import annotations

import shutil
import sys
from importlib.util import module_from_spec
from pathlib import Path

from tests.conftest import ROOT

from warmcell.cage.zygote import live_modules

LIVE = ROOT / "src/warmcell/guest/live"


def load(directory: Path) -> live_modules.LiveModules | None:
    return live_modules.load(str(directory), live_modules.find_version(str(directory)))


def copy_package(target: Path) -> None:
    """Without the cache: a temporary file that another process writes there is renamed before it can be copied."""
    shutil.copytree(LIVE, target, ignore=shutil.ignore_patterns("__pycache__"))


def test_the_modules_are_loaded_and_hidden() -> None:
    before, finders = dict(sys.modules), list(sys.meta_path)
    loaded = load(LIVE)
    assert loaded is not None
    found = loaded.modules
    assert sys.modules == before and sys.meta_path == finders
    agent, preloaded = found["warmcell_live.agent"], found["warmcell_live.preloaded"]
    assert agent.__file__ == agent.main.__code__.co_filename == "/code/live/agent.py"
    assert str(ROOT) not in repr([vars(module.__spec__) for module in found.values() if module.__spec__])
    assert set(preloaded.modules) == {"python_session", "session_image"}
    assert "warmcell_live.python_session" not in found
    assert not hasattr(found["warmcell_live"], "python_session") and hasattr(found["warmcell_live"], "agent")
    assert "warmcell_live.session_image" in preloaded.modules["session_image"]
    assert "warmcell_live.session_image" not in preloaded.modules["python_session"]


def test_modules_that_are_not_loaded_are_found_without_the_directory(tmp_path: Path) -> None:
    copy_package(tmp_path / "live")
    loaded = load(tmp_path / "live")
    shutil.rmtree(tmp_path / "live")
    assert loaded is not None
    spec = loaded.finder.find_spec("warmcell_live.shell_session")
    assert spec is not None and spec.loader is not None and spec.origin == "/code/live/shell_session.py"
    module = module_from_spec(spec)
    assert module.__file__ == spec.origin
    assert loaded.finder.find_spec("warmcell_live.start") is None is loaded.finder.find_spec("json")


def test_nothing_is_left_when_they_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("from . import frames\n")
    (tmp_path / "frames.py").write_text("raise ValueError\n")
    before, finders = dict(sys.modules), list(sys.meta_path)
    assert load(tmp_path) is load(tmp_path / "missing") is None
    assert sys.modules == before and sys.meta_path == finders


def test_a_package_that_was_replaced_is_not_mixed_with_the_old_one(tmp_path: Path) -> None:
    copy_package(tmp_path / "live")
    directory = str(tmp_path / "live")
    before = live_modules.find_version(directory)
    assert live_modules.load(directory, before)
    (tmp_path / "new").write_text("")
    (tmp_path / "new").rename(tmp_path / "live/frames.py")
    assert live_modules.load(directory, before) is None
