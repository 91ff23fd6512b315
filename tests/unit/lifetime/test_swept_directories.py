"""Leftovers of killed programs are found where TMPDIR cannot be used, or the program has chosen another directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from warmcell.lifetime.held_directories import create_held_directory, find_abandoned, hold, swept_directories


@pytest.mark.needs("linux")
def test_a_missing_temporary_directory_hides_nothing(tmp_path: Path) -> None:
    """`tempfile` takes the next one, for the program that is killed and for the one after it."""
    (tmp_path / "next").mkdir()
    places = {"TMPDIR": f"{tmp_path}/missing", "TEMP": f"{tmp_path}/next", "XDG_CACHE_HOME": f"{tmp_path}/cache"}

    def run(code: str) -> str:
        command = [sys.executable, "-c", f"from warmcell.lifetime.held_directories import *\n{code}"]
        return subprocess.run(command, env={**os.environ, **places}, check=True, capture_output=True, text=True).stdout

    assert run("print(has_abandoned())") == "False\n"
    run("create_held_directory('warmcell-work-')")
    assert len(os.listdir(tmp_path / "next")) == 1
    assert run("print(has_abandoned())") == "True\n"


@pytest.mark.needs("linux")
def test_a_directory_that_the_program_has_chosen_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/cache")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = create_held_directory("warmcell-work-")
    left.release()
    found = [path for parent, prefixes in swept_directories() for path in find_abandoned(parent, prefixes)]
    assert left.path in found


@pytest.mark.needs("linux")
def test_a_released_directory_is_free_beside_a_child_that_still_has_its_descriptor(tmp_path: Path) -> None:
    """A child has copies of all descriptors until it executes its program. A copy of the program releases nothing."""
    held = hold(str(tmp_path))
    assert held is not None
    copies = [os.dup(held._lock)]
    try:
        held.release()
        again = hold(str(tmp_path))
        assert again is not None
        copies.append(os.dup(again._lock))
        again.abandon()
        assert hold(str(tmp_path)) is None
    finally:
        for copy in copies:
            os.close(copy)
