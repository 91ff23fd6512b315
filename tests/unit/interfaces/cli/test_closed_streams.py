"""The command where stdin or stderr was closed before it started, as some daemons leave them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.unit.interfaces.cli.command import COMMAND

pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("user namespaces")]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = tmp_path / "project"
    made.mkdir()
    return made


def run_without(closed: str, directory: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, *argv]
    return subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("closed", ["<&-", "<&- 2>&-"])
def test_changes_of_a_run_are_kept_and_its_status_stays(directory: Path, tmp_path: Path, closed: str) -> None:
    code = "open('a.txt', 'w').write('kept'); raise SystemExit(3)"
    done = run_without(closed, directory, "run", "python", "-c", code, "--changes")
    assert (done.returncode, done.stdout) == (3, ""), done
    done = run_without("</dev/null", directory, "run", "python", "-c", "print(open('a.txt').read())", "--discard")
    assert done.stdout == "kept\n"
    assert os.listdir(tmp_path / "state/warmcell/changes") == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("shell", "shell needs a terminal"),
        ("shell . --changes", "shell needs a terminal"),
        ("image pull nowhere/nothing --password-stdin", "stdin is closed"),
    ],
)
def test_a_command_that_needs_stdin_says_so(directory: Path, command: str, message: str) -> None:
    done = run_without("<&-", directory, *command.split())
    assert done.returncode == 2 and f"error: {message}" in done.stderr, done
