"""Two machines that keep snapshots at one URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.workspaces.trees import directory_of, look

from warmcell import SnapshotNotFound
from warmcell.workspaces import Manifest, WorkspaceStore


def share_snapshots(url: str, options: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes, resumes, removes and compacts snapshots. Each machine has a data directory of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "here"))
    store = WorkspaceStore(url, options=options)
    made = store.provision(Manifest(files={"a": os.urandom(600_000), "b/c": "text"}))
    taken = store.snapshot(made, name="kept")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "elsewhere"))
    other = WorkspaceStore(url, options=options)
    (directory_of(store, made) / "d").write_text("more")
    later = store.snapshot(made, name="later")
    assert [info.id for info in other.snapshots()] == [taken, later]
    assert look(directory_of(other, other.resume("later"))) == look(directory_of(store, made))
    other.remove(later)
    other.compact()
    assert (directory_of(other, other.resume("kept")) / "b/c").read_text() == "text"
    with pytest.raises(SnapshotNotFound):
        store.resume(later)
    assert [info.id for info in store.snapshots()] == [taken]
    other.remove(taken)
    other.compact()  # the first machine's index names packs that are gone now
    again = store.snapshot(made)
    assert look(directory_of(other, other.resume(again))) == look(directory_of(store, made))
