"""Removing, copying, comparing and keeping whole trees."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.helpers import fork_child, reap

from warmcell.core.errors import PathTraversal, SnapshotNotFound
from warmcell.workspace import diff
from warmcell.workspace.copy import copy_tree
from warmcell.workspace.diff import FsChange
from warmcell.workspace.errors import LimitExceeded, WorkspaceError
from warmcell.workspace.remove import clear, remove, remove_directory
from warmcell.workspace.root import Root
from warmcell.workspace.snapshot import SnapshotStore
from warmcell.workspace.walk import TreeLimits, walk


def fill(base: Path) -> None:
    (base / "sub/deep").mkdir(parents=True)
    (base / "a.txt").write_bytes(b"a")
    (base / "sub/b.txt").write_bytes(b"bb")
    (base / "sub/deep/run.sh").write_bytes(b"#!")
    (base / "sub/deep/run.sh").chmod(0o755)
    (base / "link").symlink_to("/nowhere")


def make_deep(base: Path, levels: int) -> None:
    """A tree deeper than any path can be long."""
    here = os.open(base, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        child = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = child
    os.close(here)


def test_removing_a_directory_leaves_what_its_links_name(root: Root, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").touch()
    inner = Path(root.path) / "d/e"
    inner.mkdir(parents=True)
    (inner / "out").symlink_to(outside)
    (Path(root.path) / "d/file").touch()
    remove(root, ("d",))
    assert os.listdir(root.path) == []
    assert os.listdir(outside) == ["keep"]


def test_a_directory_with_something_in_it_stays_when_not_recursive(root: Root) -> None:
    fill(Path(root.path))
    with pytest.raises(WorkspaceError, match="not empty"):
        remove(root, ("sub",), recursive=False)
    remove(root, ("a.txt",), recursive=False)
    assert not (Path(root.path) / "a.txt").exists()


def test_a_tree_deeper_than_any_path_can_be_removed(root: Root) -> None:
    (Path(root.path) / "top").mkdir()
    make_deep(Path(root.path) / "top", 2200)
    remove(root, ("top",))
    assert os.listdir(root.path) == []


def test_a_wide_tree_is_removed_in_linear_time(root: Root) -> None:
    for number in range(1000):
        (Path(root.path) / f"top/{number}").mkdir(parents=True)
    remove(root, ("top",))
    assert os.listdir(root.path) == []


def test_what_is_closed_to_its_owner_is_removed_too() -> None:
    """Root may pass every door, so a child does it as an ordinary user where the tests run as root."""
    base = tempfile.mkdtemp(dir="/tmp")  # not below another test's private directory
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(base, 65534, 65534)
    status = reap(fork_child(lambda: sys.exit(_close_and_remove(base, is_root))))
    shutil.rmtree(base, ignore_errors=True)
    assert status == 0


def _close_and_remove(base: str, is_root: bool) -> int:
    os.mkdir(base + "/first")
    remove_directory(base + "/first")  # imports what it needs while the interpreter's own files can be read
    if is_root:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    here = os.path.join(base, "private")
    os.makedirs(here + "/a/b/c/d")
    for name, mode in (("/a/b/c/d", 0), ("/a/b/c", 0o100), ("/a/b", 0o500), ("/a", 0), ("", 0)):
        os.chmod(here + name, mode)
    remove_directory(here)
    return int(os.path.exists(here))


def test_a_walk_stops_at_its_limit(root: Root) -> None:
    for number in range(20):
        (Path(root.path) / str(number)).touch()
    assert len(list(walk(root, (), TreeLimits(20)))) == 20
    with pytest.raises(LimitExceeded):
        list(walk(root, (), TreeLimits(19)))


def test_a_walk_of_a_tree_too_deep_for_paths_ends_typed(root: Root) -> None:
    make_deep(Path(root.path), 2200)
    with pytest.raises(LimitExceeded):
        list(walk(root))


def test_a_copy_has_files_modes_and_links_and_names_what_it_left_out(root: Root, tmp_path: Path) -> None:
    fill(Path(root.path))
    os.mkfifo(Path(root.path) / "sub/pipe")
    for name, mode in (("sub", 0o770), ("sub/deep", 0o500)):
        (Path(root.path) / name).chmod(mode)
    (tmp_path / "copy").mkdir()
    target = Root(tmp_path / "copy")
    copied = copy_tree(root, target)
    target.close()
    assert copied == (3, 5, ("sub/pipe",))
    assert (tmp_path / "copy/sub/b.txt").read_bytes() == b"bb"
    modes = [(tmp_path / "copy" / name).stat().st_mode & 0o777 for name in ("sub", "sub/deep", "sub/deep/run.sh")]
    assert modes == [0o770, 0o700, 0o755]
    assert os.readlink(tmp_path / "copy/link") == "/nowhere"


def test_a_copy_stops_at_its_limit(root: Root, tmp_path: Path) -> None:
    fill(Path(root.path))
    target = Root(tmp_path)
    with pytest.raises(LimitExceeded):
        copy_tree(root, target, limits=TreeLimits(total_bytes=2))
    target.close()


def test_a_file_too_large_to_copy_is_not_begun(root: Root, tmp_path: Path) -> None:
    with (Path(root.path) / "huge").open("wb") as stream:
        stream.write(bytes(2 << 20))
    (tmp_path / "copy").mkdir()
    target = Root(tmp_path / "copy")
    with pytest.raises(LimitExceeded):
        copy_tree(root, target, limits=TreeLimits(total_bytes=1 << 20))
    target.close()
    assert os.listdir(tmp_path / "copy") == []


def test_a_difference_names_what_was_created_modified_and_deleted(root: Root) -> None:
    base = Path(root.path)
    fill(base)
    before = diff.record(root)
    assert diff.changes_since(before, root) == []
    (base / "a.txt").write_bytes(b"A")
    (base / "sub/b.txt").unlink()
    (base / "sub/new/er").mkdir(parents=True)
    (base / "sub/new/er/c").write_bytes(b"ccc")
    (base / "link").unlink()
    (base / "link").symlink_to("/elsewhere")
    os.mkfifo(base / "pipe")
    assert diff.changes_since(before, root) == [
        FsChange("a.txt", "modified", 1),
        FsChange("link", "modified", 0, "symlink"),
        FsChange("pipe", "created", 0, "other"),
        FsChange("sub/b.txt", "deleted", 2),
        FsChange("sub/new/er/c", "created", 3),
    ]


def test_a_change_is_seen_though_size_and_times_are_as_before(root: Root) -> None:
    path = Path(root.path) / "a"
    path.write_bytes(b"old")
    state = path.stat()
    before = diff.record(root)
    with path.open("r+b") as stream:
        stream.write(b"new")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert diff.changes_since(before, root) == [FsChange("a", "modified", 3)]


def test_a_file_that_becomes_something_else_is_modified(root: Root) -> None:
    path = Path(root.path) / "a"
    path.write_bytes(b"x")
    before = diff.record(root)
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert diff.changes_since(before, root) == [FsChange("a", "modified", 0, "symlink")]


def test_odd_names_are_reported(root: Root) -> None:
    before = diff.record(root)
    (Path(root.path) / os.fsdecode(b"\xff\n")).touch()
    assert [change.path for change in diff.changes_since(before, root)] == ["\\xff\n"]


def test_no_name_hides_a_file(root: Root) -> None:
    """Neither the names that we give to files in the making nor any other."""
    before = diff.record(root)
    for name in (".warmcell-" + "0" * 24, ".hidden", ".git"):
        (Path(root.path) / name).touch()
    assert len(diff.changes_since(before, root)) == 3


def test_a_tree_too_large_to_hash_is_refused(root: Root) -> None:
    fill(Path(root.path))
    with pytest.raises(LimitExceeded):
        diff.record(root, TreeLimits(total_bytes=3))


def test_a_snapshot_restores_what_was(root: Root) -> None:
    base = Path(root.path)
    fill(base)
    store = SnapshotStore()
    taken = store.take(root)
    assert len(taken) == 32
    before = diff.record(root)
    (base / "a.txt").write_bytes(b"changed")
    (base / "new").mkdir()
    store.restore(taken, root)
    assert diff.changes_since(before, root) == []
    assert not (base / "new").exists()
    where = store._root.path
    store.close()
    store.close()
    assert not os.path.exists(where)


def test_a_restore_does_not_stop_when_it_takes_long(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has removed the files by then. Taking the snapshot may have been faster."""
    fill(Path(root.path))
    store, seconds = SnapshotStore(), itertools.count(0, 100)
    taken, before = store.take(root), diff.record(root)
    with monkeypatch.context() as patched:
        patched.setattr("warmcell.workspace.walk.time", SimpleNamespace(monotonic=lambda: next(seconds)))
        store.restore(taken, root)
    assert diff.changes_since(before, root) == []
    store.close()


@pytest.mark.attack("WS-14")
@pytest.mark.parametrize("bad", ["../x", "a/b", "A" * 32, "", ".", "x" * 10_000, "0" * 32, "0" * 31 + "/", None, 3])
def test_an_id_that_was_never_given_out_finds_nothing(root: Root, bad: object) -> None:
    store = SnapshotStore()
    try:
        (Path(root.path) / "keep").touch()
        with pytest.raises(SnapshotNotFound):
            store.restore(bad, root)  # type: ignore[arg-type]
        assert os.listdir(root.path) == ["keep"]
    finally:
        store.close()


def test_nothing_is_left_of_a_snapshot_that_fails(root: Root) -> None:
    fill(Path(root.path))
    store = SnapshotStore()
    with pytest.raises(LimitExceeded):
        store.take(root, TreeLimits(total_bytes=2))
    assert os.listdir(store._root.path) == []
    store.close()


def test_a_store_is_for_its_owner_only() -> None:
    store = SnapshotStore()
    assert os.stat(store._root.path).st_mode & 0o777 == 0o700
    store.close()


def test_clearing_wins_against_a_writer(root: Root) -> None:
    """Something keeps making names; clearing ends, either way, and typed."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.wait(0.001):
            number += 1
            with contextlib.suppress(OSError):
                os.makedirs(f"{root.path}/{number % 7}/x")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            with contextlib.suppress(OSError, WorkspaceError, PathTraversal):
                clear(root)
    finally:
        stop.set()
        writer.join()
    clear(root)
    assert os.listdir(root.path) == []
