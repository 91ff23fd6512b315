"""Several programs that use one store at the same time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.helpers import fork_child
from tests.workspaces.trees import directory_of, look

from warmcell.workspaces import Manifest, WorkspaceStore

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
