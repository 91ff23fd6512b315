"""Directories that a hostile guest made: what is saved of them can be restored, and takes no more space than before."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

from warmcell.core.errors import ExecutionFailed
from warmcell.workspace.errors import LimitExceeded
from warmcell.workspace.names import MAX_PATH_BYTES
from warmcell.workspace.remove import remove_directory
from warmcell.workspace.root import Quota, Root
from warmcell.workspaces.snapshots.archive import SnapshotArchive
from warmcell.workspaces.snapshots.chunks import ChunkCodec, is_worth_compressing
from warmcell.workspaces.snapshots.take import DirectoryReader, TreeWriter, find_data
from warmcell.workspaces.snapshots.tree import MAX_SIZE, Entry, Line, write_line, write_pieces

BLOCK = 256 << 10


def test_the_deepest_tree_that_is_saved_comes_back(tmp_path: Path) -> None:
    depth, chunks = MAX_PATH_BYTES // 2, {}
    entry = Entry("directory", "a", 0o755)
    for number in range(depth):
        digest = f"{number:048x}"
        (chunks[digest],) = write_pieces([write_line(entry)])
        entry = Entry("directory", "a" if number < depth - 1 else "", 0o755, blocks=(digest,))
    with Root(tmp_path) as root:
        TreeWriter(chunks.__getitem__, root).write(entry)
        assert root.lstat(("a",) * depth)
    remove_directory(str(tmp_path / "a"))


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


def test_only_what_shrinks_is_compressed() -> None:
    page, codec = os.urandom(4096), ChunkCodec()
    noise = b"".join(os.urandom(4096) for _ in range(16))
    sparse = page + bytes(28 * 4096) + page + page + bytes(32 * 4096) + page  # noise where samples are taken
    for data, is_compressed in ((noise, False), (noise[:4096] * 16, True), (sparse, True), (b"text " * 20_000, True)):
        stored = codec.seal(data, codec.digest(data))
        assert codec.open(stored, codec.digest(data)) == data
        assert (len(stored) < len(data)) is is_compressed is is_worth_compressing(data)


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


def test_a_record_that_could_not_be_read_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One such record would make the list of all snapshots fail, and the compaction of the store."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(200):
        os.mkfifo(source / f"{number:0100}")
    archive = SnapshotArchive(str(tmp_path / "store"))
    monkeypatch.setattr("warmcell.workspaces.snapshots.chunks.MAX_CHUNK", 10_000)
    with pytest.raises(LimitExceeded, match="too many names"):
        archive.take(str(source), "source", {})
    assert archive.identities() == [] and archive.records() == []
    archive.compact()


def test_a_directory_of_large_files_is_listed_in_small_pieces() -> None:
    names = [name for name in map(str, range(200)) if zlib.crc32(name.encode()) % 64][:20]
    lines = sorted(Line(name, "x" * (1 << 20)) for name in names)
    pieces = list(write_pieces(lines))
    assert max(map(len, pieces)) <= 1 << 22
    assert b"\n".join(pieces).decode() == "\n".join(line.text for line in lines)


def test_a_scan_that_could_not_be_read_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All later snapshots of the directory would fail."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(600):
        (source / f"{number:0100}").touch()
    archive = SnapshotArchive(str(tmp_path / "store"))
    monkeypatch.setattr("warmcell.workspaces.snapshots.take._TICK_NS", -(10**15))  # the files count as old
    for module in ("chunks", "take"):
        monkeypatch.setattr(f"warmcell.workspaces.snapshots.{module}.MAX_CHUNK", 1 << 17)
    for _ in range(2):
        assert archive.take(str(source), "source", {}).files == 600
