"""Several programs that use one store at the same time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from tests.helpers import fork_child
from tests.workspaces.trees import directory_of, look

from warmcell.workspaces import Manifest, WorkspaceHandle, WorkspaceStore

PROGRAMS, ROUNDS = 4, 5


@pytest.mark.timeout(300)
def test_snapshots_beside_compactions(tmp_path: Path) -> None:
    """Each program changes its own workspace, verifies its snapshots, removes some and compacts; chunks are shared."""
    path = str(tmp_path / "store")
    common = {f"shared{number}": f"{number}" * 4000 for number in range(5)}
    store = WorkspaceStore(path)
    for number in range(PROGRAMS):
        store.provision(Manifest(files=common), name=f"w{number}")
    children = [fork_child(lambda number=number: _work(path, number)) for number in range(PROGRAMS)]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * PROGRAMS
    assert len(store.snapshots()) == PROGRAMS
    for info in store.snapshots():
        workspace = store.get(info.workspace)
        assert look(directory_of(store, store.resume(info.id))) == look(directory_of(store, workspace))


def _work(path: str, number: int) -> None:
    store = WorkspaceStore(path)
    made = store.get(f"w{number}")
    place, before = directory_of(store, made), None
    for round_number in range(ROUNDS):
        (place / "own").write_text(f"{number} {round_number}" * 1000)
        (place / "same").write_text(f"{round_number}" * 5000)  # the same chunk in all programs, removed by some
        taken = store.snapshot(made)
        if before is not None:
            store.remove(before)
        if round_number % 2 == number % 2:
            store.compact()
        back = store.resume(taken)
        assert look(directory_of(store, back)) == look(place)
        store.remove(back)
        before = taken


def test_a_workspace_that_is_finished_during_a_compaction_stays(
    store: WorkspaceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is added after the compaction has listed the workspaces, and before it looks at their directories."""
    is_filled, is_listed = threading.Event(), threading.Event()

    def wait(_: int) -> None:
        is_filled.set()
        is_listed.wait(60)

    monkeypatch.setattr("warmcell.workspaces.store.sync_file_system", wait)
    creating = threading.Thread(target=lambda: store.provision(Manifest(files={"a": "b"}), name="made"))
    creating.start()
    assert is_filled.wait(60)
    list_all = store.list

    def list_and_let_finish() -> list[WorkspaceHandle]:
        found = list_all()
        is_listed.set()
        creating.join(60)
        return found

    monkeypatch.setattr(store, "list", list_and_let_finish)
    store.compact()
    assert (directory_of(store, store.get("made")) / "a").read_text() == "b"
