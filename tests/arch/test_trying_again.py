"""`steadily` of scripts/lib.sh: a test that fails beside others is tried again alone, and red stays red."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TRIAL = """
import pathlib, pytest

@pytest.mark.parametrize("address", ["a@b"])
def test_that_fails_once(address):
    seen = pathlib.Path("seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError

@pytest.mark.xdist_group("two words")
def test_in_a_group():
    assert {is_green}
"""


@pytest.mark.parametrize(("is_green", "status"), [(True, 0), (False, 1)])
def test_who_passes_alone_is_unsteady_and_who_does_not_is_red(
    repository: Path, tmp_path: Path, is_green: bool, status: int
) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_trial.py").write_text(TRIAL.format(is_green=is_green))
    (tmp_path / ".venv").symlink_to(sys.prefix)
    command = f". {repository}/scripts/lib.sh; steadily -q -n 1 --dist loadgroup"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert ("unsteady: test_trial.py::test_that_fails_once[a@b]\n" in done.stdout) is is_green
