"""`warmcell workspace`: from a manifest to a snapshot and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import until

from warmcell.interfaces.cli.workspace import _end_other
from warmcell.workspaces import WorkspaceStore


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def _run(store: str, *words: str) -> subprocess.CompletedProcess[str]:
    at = words.index("--") if "--" in words else len(words)
    line = [sys.executable, "-m", "warmcell", "workspace", *words[:at], "--store", store, *words[at:]]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


def test_from_a_manifest_to_a_snapshot_and_back(store: str, tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text('[files]\n"a.txt" = "A"\n[env]\nWORD = "hi"\n')
    assert _run(store, "create", "demo", "--manifest", str(tmp_path / "w.toml")).stdout == "demo\n"
    done = _run(store, "open", "demo", "--snapshot", "--", "sh", "-c", "cat a.txt; echo $WORD > b.txt; exit 3")
    assert (done.stdout, done.returncode) == ("A", 3), done.stderr
    listed = json.loads(_run(store, "list", "--json").stdout)
    assert [(item["name"], item["state"]) for item in listed["workspaces"]] == [("demo", "stopped")]
    assert len(listed["snapshots"]) == 1
    taken = json.loads(_run(store, "snapshot", "demo", "--name", "kept", "--json").stdout)["id"]
    assert _run(store, "resume", "kept", "--name", "again").stdout == "again\n"
    assert _run(store, "export", "again", str(tmp_path / "out")).returncode == 0
    assert (tmp_path / "out/b.txt").read_text() == "hi\n"
    assert taken in _run(store, "list").stdout
    assert _run(store, "remove", "demo", "again", taken).returncode == 0
    missing = _run(store, "stop", "demo", "--json")
    assert (missing.returncode, json.loads(missing.stdout)["error"]["code"]) == (2, "sandbox.workspace_not_found")


def test_stop_ends_one_that_is_open_elsewhere(store: str) -> None:
    _run(store, "create", "demo")
    line = [sys.executable, "-m", "warmcell", "workspace", "open", "demo", "--store", store, "--", "sleep", "600"]
    opened = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        workspaces = WorkspaceStore(store)
        until(lambda: workspaces.get("demo").state == "running")
        assert _run(store, "stop", "demo").returncode == 0
        assert opened.wait(60) != 0
        assert workspaces.get("demo").state == "stopped"
    finally:
        opened.kill()
        opened.wait()


def test_a_program_that_ends_meanwhile_needs_no_signal(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workspaces = WorkspaceStore(store)
    workspaces.provision(name="demo")
    monkeypatch.setattr(WorkspaceStore, "find_user", lambda self, name: 2**22)  # more than any pid
    _end_other(workspaces, "demo")


def test_another_program_is_left_alone(store: str) -> None:
    workspaces = WorkspaceStore(store)
    made = workspaces.provision(name="demo")
    with workspaces.use_directory(made):
        done = _run(store, "stop", "demo")
        assert done.returncode == 125 and f"process {os.getpid()}" in done.stderr
