"""A failing test is red. Only the tests listed in tests/unsteady.toml are tried once more."""

from __future__ import annotations

import datetime
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

MOST = 5
NEVER = ("tests/escape/", "tests/siege/", "tests/contract/")


def test_the_list_is_short_and_every_entry_has_a_cause_and_expires(repository: Path) -> None:
    entries = tomllib.loads((repository / "tests/unsteady.toml").read_text()).get("test", [])
    assert len(entries) <= MOST
    for entry in entries:
        name = entry["name"]
        assert (repository / name.partition("::")[0]).is_file(), f"no such test: {name}"
        assert not name.startswith(NEVER), f"never tried again: {name}"
        assert len(entry["cause"]) > 20, f"no cause: {name}"
        assert entry["expires"] >= datetime.date.today(), f"expired: {name}"


def test_the_grace_is_small_and_ends(repository: Path) -> None:
    table = tomllib.loads((repository / "tests/unsteady.toml").read_text()).get("grace", {"tests": 0})
    assert table["tests"] <= MOST
    assert not table["tests"] or table["until"] <= datetime.date(2026, 12, 31)


TRIAL = r"""
import pathlib, pytest

@pytest.mark.parametrize("address", [r"a@b, said\n"])
def test_that_fails_once(address):
    seen = pathlib.Path("seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError

@pytest.mark.xdist_group("two words")
def test_in_a_group():
    assert {other_passes}
"""
ENTRY = """
[[test]]
name = '{name}'
cause = "a trial of the list itself"
expires = {expires}
"""


@pytest.mark.parametrize(
    ("place", "is_listed", "expires", "other_passes", "is_green", "grace"),
    [
        ("tests/unit", True, "2999-01-01", True, True, ""),
        ("tests/unit", False, "2999-01-01", True, False, ""),
        ("tests/unit", True, "2000-01-01", True, False, ""),
        ("tests/unit", True, "2999-01-01", False, False, ""),
        ("tests/escape", True, "2999-01-01", True, False, ""),
        ("tests/siege", True, "2999-01-01", True, False, ""),
        ("tests/contract", True, "2999-01-01", True, False, ""),
        ("tests/unit", False, "2999-01-01", True, True, "[grace]\ntests = 1\nuntil = 2999-01-01\n"),
        ("tests/escape", False, "2999-01-01", True, False, "[grace]\ntests = 1\nuntil = 2999-01-01\n"),
        ("tests/unit", False, "2999-01-01", True, False, "[grace]\ntests = 1\nuntil = 2000-01-01\n"),
    ],
    ids=[
        "listed",
        "not listed",
        "expired",
        "another is red",
        "escape",
        "siege",
        "contract",
        "grace",
        "no grace",
        "over",
    ],
)
def test_only_a_listed_test_is_tried_again(
    repository: Path,
    tmp_path: Path,
    place: str,
    is_listed: bool,
    expires: str,
    other_passes: bool,
    is_green: bool,
    grace: str,
) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "scripts").symlink_to(repository / "scripts")
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "test_trial.py").write_text(TRIAL.format(other_passes=other_passes))
    name = rf"{place}/test_trial.py::test_that_fails_once[a@b, said\\n]"
    entry = ENTRY.format(name=name, expires=expires) if is_listed else "test = []"
    (tmp_path / "tests/unsteady.toml").write_text(f"{entry}\n{grace}")
    command = ". scripts/lib.sh; logs=.; step trial run_pytest -q -n 1 --dist loadgroup tests"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if is_green else 1), done.stdout + done.stderr
    assert (f"unsteady: {name}\n" in done.stdout) is is_green
