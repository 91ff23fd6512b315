"""Directories that a hostile guest made: what is saved of them can be restored, and takes no more space than before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.workspaces.trees import directory_of

from warmcell.core.errors import ExecutionFailed
from warmcell.workspace.errors import LimitExceeded
from warmcell.workspace.quota import Quota
from warmcell.workspace.remove import remove_directory
from warmcell.workspace.root import Root
from warmcell.workspaces import Manifest, WorkspaceStore
from warmcell.workspaces.snapshots.archive import SnapshotArchive
from warmcell.workspaces.snapshots.restore import find_data
from warmcell.workspaces.snapshots.take import DirectoryReader
from warmcell.workspaces.snapshots.tree import MAX_SIZE

BLOCK = 256 << 10


def test_the_deepest_tree_that_is_saved_comes_back(store: WorkspaceStore) -> None:
    made = store.provision(Manifest())
    top = directory_of(store, made)
    at = os.open(top, os.O_RDONLY)
    for _ in range(2040):
        os.mkdir("a", dir_fd=at)
        below = os.open("a", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    back = directory_of(store, store.resume(store.snapshot(made)))
    with Root(back) as root:
        assert root.lstat(("a",) * 2040)
    for path in (top, back):
        remove_directory(str(path))
        path.mkdir()


def test_a_file_with_a_byte_in_every_block_does_not_grow(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir(), target.mkdir()
    with open(source / "sparse", "wb") as file:
        for number in range(32):
            file.seek(number * BLOCK + 5000)
            file.write(b"x")
        file.truncate(40 * BLOCK)
    archive = SnapshotArchive(str(tmp_path / "store"))
    taken = archive.take(str(source), "source", {})
    with Root(target, quota=Quota(1)) as root:
        archive.restore(taken.id, root)
    assert (target / "sparse").read_bytes() == (source / "sparse").read_bytes()
    assert (target / "sparse").stat().st_blocks * 512 <= 1 << 20


def test_a_full_quota_ends_the_restoring(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir(), target.mkdir()
    (source / "large").write_bytes(os.urandom(BLOCK * 5))
    archive = SnapshotArchive(str(tmp_path / "store"))
    taken = archive.take(str(source), "source", {})
    with Root(target, quota=Quota(1)) as root, pytest.raises(LimitExceeded, match="1 MB"):
        archive.restore(taken.id, root)


def test_find_data() -> None:
    page = b"x" * 4096
    assert find_data(page + page[:5]) == [(0, 4101)]
    assert find_data(bytes(4096) + page + page + bytes(4096) + page[:7]) == [(4096, 12288), (16384, 16391)]
    assert find_data(page + bytes(100)) == [(0, 4196)]
    assert find_data(bytes(8192)) == []


def test_a_file_that_could_not_be_restored_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "huge").touch()
    (tmp_path / "small").touch()
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(2 << 20)
    monkeypatch.setattr("warmcell.workspaces.snapshots.take.MAX_SIZE", 1 << 20)
    with Root(tmp_path) as root:
        assert DirectoryReader(lambda data: "0" * 48, None).read(root).skipped == ("huge",)
    assert MAX_SIZE == 1 << 46


def test_a_full_disk_is_not_a_damaged_store(tmp_path: Path) -> None:
    archive = SnapshotArchive(str(tmp_path / "store"))
    with pytest.raises(ExecutionFailed, match="disk is full"), archive.catalogue.connect() as database:
        (pages,) = database.execute("pragma page_count").fetchone()
        database.execute(f"pragma max_page_count = {pages}")  # SQLite's own words for a full disk
        database.execute("insert into snapshots values ('a', zeroblob(100000))")
