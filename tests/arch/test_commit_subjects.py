"""scripts/check-commits, in a repository of its own and over this one's history."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = "pool: ignore EBADF when the zygote closed concurrently"
FAULTS = {
    "no area": "Ignore EBADF when the zygote closed",
    "capital": "pool: Ignore EBADF",
    "no object": "pool: ignore",
    "full stop": "pool: ignore EBADF.",
    "long": "pool: " + "ignore " * 9 + "errors",
}


def check(repository: Path, where: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(repository / "scripts/check-commits")]
    settings = {key: value for key, value in os.environ.items() if key != "WARMCELL_COMMIT_RANGE"} | environment
    return subprocess.run(command, cwd=where, env=settings, capture_output=True, text=True, check=False)


def commit(where: Path, subject: str) -> None:
    person = ["-c", "user.name=a", "-c", "user.email=a@example.invalid"]
    subprocess.run(["git", *person, "commit", "-q", "--allow-empty", "-m", subject], cwd=where, check=True)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    commit(tmp_path, "Before the rule")
    commit(tmp_path, GOOD)
    return tmp_path


def test_subjects_in_the_range_are_checked(repository: Path, history: Path) -> None:
    assert check(repository, history, WARMCELL_COMMIT_RANGE="HEAD~1..HEAD").returncode == 0
    assert check(repository, history, WARMCELL_COMMIT_RANGE="HEAD").returncode == 1


@pytest.mark.parametrize("subject", FAULTS.values(), ids=FAULTS)
def test_a_wrong_subject_is_named(repository: Path, history: Path, subject: str) -> None:
    commit(history, subject)
    done = check(repository, history, WARMCELL_COMMIT_RANGE="HEAD~1..HEAD")
    assert done.returncode == 1 and subject in done.stdout


def test_a_range_that_does_not_exist_is_an_error(repository: Path, history: Path) -> None:
    assert check(repository, history, WARMCELL_COMMIT_RANGE="nowhere..HEAD").returncode == 2


def test_without_history_it_says_so(repository: Path, history: Path) -> None:
    done = check(repository, history)
    assert (done.returncode, done.stdout) == (0, "note: no history here, commit subjects were not checked\n")


def test_the_subjects_of_this_repository(repository: Path) -> None:
    done = check(repository, repository, WARMCELL_COMMIT_RANGE=os.environ.get("WARMCELL_COMMIT_RANGE", ""))
    assert done.returncode == 0, done.stdout + done.stderr
