"""Stores that somebody edited: what is not as it was written is refused, and nothing is written outside."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.helpers import is_root
from tests.workspaces.trees import directory_of, list_objects

from warmcell import BackendUnavailable, SnapshotInvalid
from warmcell.workspace.root import Root
from warmcell.workspace.workspace import Workspace
from warmcell.workspaces import Manifest, WorkspaceStore
from warmcell.workspaces.snapshots.chunks import ChunkCodec, read_index
from warmcell.workspaces.snapshots.take import TreeWriter
from warmcell.workspaces.snapshots.tree import Entry, from_plain, read_piece, write_line, write_pieces
from warmcell.workspaces.store import SharedSnapshots


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["packs", "snapshots"])
@pytest.mark.parametrize("offset", [0, 1, 40, 200, -1])
def test_every_changed_byte_is_noticed(kind: str, offset: int, store: WorkspaceStore) -> None:
    """By the program that reads it, or, if only the index of a pack changed, by the next one that has no catalogue."""
    taken = store.snapshot(store.provision(Manifest(files={"a": os.urandom(1000)})))
    _flip(list_objects(store, kind)[0], offset)
    Path(store.path, "catalogue.db").unlink()
    with pytest.raises(SnapshotInvalid):
        WorkspaceStore(store.path).resume(taken)
    assert list_objects(store, "work") != []


def test_a_changed_index_of_a_pack_is_refused(store: WorkspaceStore) -> None:
    store.snapshot(store.provision(Manifest(files={"a": "A"})))
    (pack,) = list_objects(store, "packs")
    assert read_index(str(pack), pack.name).chunks
    _flip(pack, -45)  # the last row, before a footer of 40 bytes
    with pytest.raises(SnapshotInvalid, match="index"):
        read_index(str(pack), pack.name)


def test_a_restore_of_a_damaged_snapshot_keeps_the_files(tmp_path: Path, store: WorkspaceStore) -> None:
    (work := tmp_path / "directory").mkdir()
    (work / "file").write_text("old")
    snapshots, workspace = SharedSnapshots(store.path, {}, None), Workspace(work)
    try:
        taken = snapshots.take(workspace, "source")
        (work / "file").write_text("new")
        for pack in list_objects(store, "packs"):
            pack.unlink()
        with pytest.raises(SnapshotInvalid, match="missing"):
            snapshots.restore(workspace, taken)
        assert (work / "file").read_text() == "new"
    finally:
        workspace.close()


def test_a_restore_does_not_stop_at_the_limit(tmp_path: Path, store: WorkspaceStore) -> None:
    """It has removed the caller's files, and a directory of the host may have had more from the beginning."""
    (work := tmp_path / "directory").mkdir()
    (work / "large").write_bytes(b"x" * (2 << 20))
    snapshots, workspace = SharedSnapshots(store.path, {}, None), Workspace(work, disk_mb=1)
    try:
        taken = snapshots.take(workspace, "source")
        snapshots.restore(workspace, taken)
        assert (work / "large").stat().st_size == 2 << 20
    finally:
        workspace.close()


def test_a_store_without_its_catalogue(store: WorkspaceStore) -> None:
    made = store.provision(Manifest(files={"a": os.urandom(600_000)}))
    taken = store.snapshot(made, name="kept")
    Path(store.path, "catalogue.db").unlink()
    again = WorkspaceStore(store.path)
    back = again.resume("kept")
    assert (directory_of(again, back) / "a").read_bytes() == (directory_of(store, made) / "a").read_bytes()
    assert again.snapshots()[0].id == taken


def test_a_failed_export_leaves_nothing(store: WorkspaceStore, tmp_path: Path) -> None:
    taken = store.snapshot(store.provision(Manifest(files={"a": os.urandom(1000)})))
    next(Path(store.path, "packs").iterdir()).write_bytes(b"")
    with pytest.raises(SnapshotInvalid):
        store.export(taken, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_missing_or_swapped_object(store: WorkspaceStore) -> None:
    made = store.provision(Manifest(files={"a": "A"}))
    first = store.snapshot(made)
    (directory_of(store, made) / "a").write_text("B")
    second = store.snapshot(made)
    shutil.copy(Path(store.path, "snapshots", first), Path(store.path, "snapshots", second))
    Path(store.path, "catalogue.db").unlink()
    with pytest.raises(SnapshotInvalid, match="another snapshot"):
        WorkspaceStore(store.path).resume(second)
    for pack in list_objects(store, "packs"):
        pack.unlink()
    with pytest.raises(SnapshotInvalid, match="missing"):
        WorkspaceStore(store.path).resume(first)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (Entry("file", "../canary", 0o644), "plain name"),
        (Entry("file", "a/b", 0o644), "plain name"),
        (Entry("directory", "..", 0o755), "plain name"),
        (Entry("file", "", 0o644), "plain name"),
        (Entry("file", "x" * 300, 0o644), "plain name"),
        (Entry("hardlink", "link", target="../canary"), "hard link"),
        (Entry("hardlink", "link", target="/etc/hostname"), "hard link"),
        (Entry("hardlink", "link", target="out/canary"), "hard link"),
        (Entry("hardlink", "link", target="missing"), "hard link"),
        (Entry("file", "big", 0o644, 0, 1 << 30, ()), "add up"),
        (Entry("file", "big", 0o644, 0, 1 << 50, (1,)), "out of range"),
        (Entry("symlink", "link", target=""), "no target"),
    ],
)
def test_a_hostile_tree_is_refused(entry: Entry, reason: str, tmp_path: Path) -> None:
    (tmp_path / "canary").write_text("untouched")
    (tmp_path / "work").mkdir()
    tree = [Entry("symlink", "out", target=str(tmp_path)), entry]
    with pytest.raises(SnapshotInvalid, match=reason):
        _write(tmp_path / "work", tree)
    assert (tmp_path / "canary").read_text() == "untouched"
    assert (tmp_path / "canary").stat().st_nlink == 1


def test_a_directory_behind_a_link_is_refused(tmp_path: Path) -> None:
    """Two entries of one name: a link that leads out, and a directory that would be written through it."""
    (tmp_path / "work").mkdir()
    tree = [Entry("symlink", "d", target=str(tmp_path)), Entry("directory", "d", 0o755)]
    with pytest.raises(SnapshotInvalid, match="twice"):
        _write(tmp_path / "work", tree)


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        ["f"],
        ["x", "a", 0, 0, 0, [], ""],
        ["f", 1, 0, 0, 0, [], ""],
        ["f", "a", "0", 0, 0, [], ""],
        ["f", "a", 0, 0, -1, [], ""],
        ["f", "a", 0, 0, 0, ["zz"], ""],
        ["f", "a", 0, 0, 0, [-1], ""],
        ["f", "a", 0, 0, 0, [True], ""],
        ["f", "a\ud800", 0, 0, 0, [], ""],
        ["l", "a", 0, 0, 0, [], "a\0b"],
        [["f"], "a", 0, 0, 0, [], ""],
    ],
)
def test_a_malformed_entry_is_refused(plain: object) -> None:
    with pytest.raises(SnapshotInvalid):
        from_plain(plain)
    with pytest.raises(SnapshotInvalid):
        list(read_piece(b"{"))
    with pytest.raises(SnapshotInvalid):
        list(read_piece(b"[" * 200_000))


def _write(directory: Path, entries: list[Entry]) -> None:
    chunks: dict[str, bytes] = {}
    for number, piece in enumerate(write_pieces([write_line(entry) for entry in entries])):
        chunks[f"{number:048x}"] = piece
    read: Callable[[str], bytes] = chunks.__getitem__
    root = Root(directory)
    try:
        TreeWriter(read, root).write(Entry("directory", "", 0o755, 0, 0, tuple(chunks)))
    finally:
        root.close()


@pytest.mark.parametrize("time", [2**63 * 10**9, -(2**63) * 10**9 - 1, 10**400])
def test_a_time_that_no_file_has_is_refused(time: int) -> None:
    assert from_plain(["d", "a", 0o755, 2**63 * 10**9 - 1, 0, [], ""]).mtime_ns
    with pytest.raises(SnapshotInvalid, match="out of range"):
        from_plain(["d", "a", 0o755, time, 0, [], ""])


@pytest.mark.skipif(is_root(), reason="root may read and write everything")
@pytest.mark.parametrize("mode", [0, 0o500])
def test_a_store_that_may_not_be_written_is_not_reported_as_damaged(store: WorkspaceStore, mode: int) -> None:
    store.provision(Manifest())
    Path(store.path).chmod(mode)
    try:
        with pytest.raises(BackendUnavailable, match="permission denied") as refused:
            store.provision(Manifest())
    finally:
        Path(store.path).chmod(0o700)
    assert "--store DIR" in str(refused.value.hint)


@pytest.mark.attack("S3-12")
@pytest.mark.parametrize("kind", ["packs", "snapshots"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/nonexistent", path)])
def test_objects_that_are_not_files_are_ignored(
    kind: str, make: Callable[[Path], object], store: WorkspaceStore
) -> None:
    """A FIFO would block every use of the store, and others made it unusable."""
    taken = store.snapshot(store.provision(Manifest(files={"a": "A"})))
    make(Path(store.path, kind, "a" * 32))
    again = WorkspaceStore(store.path)
    assert (directory_of(again, again.resume(taken)) / "a").read_text() == "A"


@pytest.mark.parametrize(
    "change",
    [
        b'"files":Infinity',
        b'"files":1,"created":NaN',
        b'"files":1,"created":1' + b"0" * 400,
        b'"files":1,"document":' + b"[" * 200_000,
    ],
)
def test_a_record_of_other_values_is_refused(change: bytes, store: WorkspaceStore) -> None:
    taken = store.snapshot(store.provision(Manifest()))
    record = Path(store.path, "snapshots", taken)
    codec = ChunkCodec()
    sealed = record.read_bytes()
    data = codec.open(sealed[48:], sealed[:48].decode()).replace(b'"files":0', change)
    digest = codec.digest(data)
    (other := record.with_name(digest[:32])).write_bytes(digest.encode() + codec.seal(data, digest))
    with pytest.raises(SnapshotInvalid, match="unknown format"):
        WorkspaceStore(store.path).resume(other.name)


@pytest.mark.parametrize("offset", [1 << 63, 1])
def test_an_index_that_names_bytes_outside_of_its_pack_is_refused(offset: int, tmp_path: Path) -> None:
    rows = struct.pack(">24sQI", b"a" * 24, offset, 10)
    footer = struct.pack(">Q24s8s", 1, hashlib.blake2b(rows, digest_size=24).digest(), b"WCPACK01")
    (tmp_path / "pack").write_bytes(b"0123456789" + rows + footer)
    with pytest.raises(SnapshotInvalid, match="beyond its end"):
        read_index(str(tmp_path / "pack"), "pack")
