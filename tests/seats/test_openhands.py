"""OpenHands: the contract of its workspaces."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import require

if find_spec("openhands") is None:  # not installed by scripts/test-seats
    pytest.skip("openhands is not installed", allow_module_level=True)
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would fetch a list of prices while it is imported


@pytest.fixture
def workspace() -> Iterator[Any]:
    from warmcell.interfaces.seats.openhands import WarmcellWorkspace

    with WarmcellWorkspace() as made:
        yield made


def test_commands(workspace: Any) -> None:
    found = workspace.execute_command("echo out; echo err >&2; [[ a == a ]] && exit 3")
    assert (found.stdout, found.stderr, found.exit_code, found.timeout_occurred) == ("out\n", "err\n", 3, False)
    workspace.execute_command("mkdir d; sleep 100000 & echo $! > d/pid")
    assert workspace.execute_command("kill -0 $(cat pid)", cwd="d").exit_code == 0
    late = workspace.execute_command("echo so far; sleep 100000", timeout=1)
    assert (late.stdout, late.exit_code, late.timeout_occurred) == ("so far\n", -1, True)


def test_files(workspace: Any, tmp_path: Path) -> None:
    (tmp_path / "up").write_bytes(b"\0\xff")
    up = workspace.file_upload(tmp_path / "up", "new/up")
    assert (up.success, up.file_size) == (True, 2)
    assert workspace.file_download("/work/new/up", tmp_path / "down/up").success
    assert (tmp_path / "down/up").read_bytes() == b"\0\xff"
    missing = workspace.file_download("none", tmp_path / "none")
    assert not missing.success and "no such file" in missing.error


def test_git(workspace: Any) -> None:
    require(workspace.execute_command("git --version").exit_code == 0, "git is not installed")
    made = workspace.execute_command(
        "git init -q r && cd r && echo 1 > a && echo 1 > b && git add -A &&"
        " git -c user.name=a -c user.email=a@b commit -qm base && echo 2 > a && rm b && echo 3 > c"
    )
    assert made.exit_code == 0, made.stderr
    changes = {str(change.path): change.status.value for change in workspace.git_changes("r")}
    assert changes == {"a": "UPDATED", "b": "DELETED", "c": "ADDED"}
    for name, original, modified in (("a", "1\n", "2\n"), ("b", "1\n", None), ("c", None, "3\n")):
        found = workspace.git_diff(f"r/{name}")
        assert (found.original, found.modified) == (original, modified)
    with pytest.raises(RuntimeError, match="not a git repository"):
        workspace.git_changes("/tmp")


def test_a_closed_workspace_is_refused(workspace: Any) -> None:
    workspace.close()
    with pytest.raises(RuntimeError, match="was closed"):
        workspace.execute_command("true")
