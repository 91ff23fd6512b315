"""Sparse files: copies keep their holes, and copies are charged to the quota of their target."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import require

from warmcell.core.types import MIB
from warmcell.workspace import files
from warmcell.workspace.copy import copy_tree
from warmcell.workspace.errors import LimitExceeded
from warmcell.workspace.remove import clear, remove
from warmcell.workspace.root import Quota, Root
from warmcell.workspace.workspace import Workspace

SIZE = 900 * MIB
AT = 500 * MIB


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    workspace = Workspace(disk_mb=8)
    yield workspace
    workspace.close()


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SIZE)
        file.seek(AT)
        file.write(b"data between two holes")
    require(path.stat().st_blocks * 512 < MIB, "this file system has no sparse files")


def check_sparse(path: Path) -> None:
    state = path.stat()
    assert state.st_size == SIZE
    assert state.st_blocks * 512 < MIB
    with path.open("rb") as file:
        file.seek(AT)
        assert file.read(22) == b"data between two holes"


def disk_use(path: str) -> int:
    return sum(os.lstat(os.path.join(top, name)).st_blocks * 512 for top, _, names in os.walk(path) for name in names)


@pytest.mark.attack("S3-09")
def test_holes_stay_holes_in_snapshots_and_after_restore(workspace: Workspace) -> None:
    sparse = Path(workspace.host_path) / "sparse"
    make_sparse(sparse)
    snapshot = workspace.snapshot()
    assert workspace._snapshots is not None
    assert disk_use(workspace._snapshots._root.path) < MIB
    sparse.unlink()
    workspace.restore(snapshot)
    check_sparse(sparse)


@pytest.mark.attack("S3-09")
def test_holes_stay_holes_in_a_fork(workspace: Workspace) -> None:
    make_sparse(Path(workspace.host_path) / "sparse")
    other = Workspace(disk_mb=8)
    workspace.copy_to(other)
    check_sparse(Path(other.host_path) / "sparse")
    other.close()


@pytest.mark.attack("S3-09")
def test_a_copy_is_charged_to_the_quota_of_its_target(tmp_path: Path) -> None:
    """Hard links take their space once in the source and once per link in the copy."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "0").write_bytes(b"x" * MIB)
    for number in range(1, 20):
        os.link(source / "0", source / str(number))
    here, there = Root(source), Root(target, quota=Quota(4))
    with pytest.raises(LimitExceeded, match="4 MB"):
        copy_tree(here, there)
    assert disk_use(str(target)) <= 4 * MIB
    here.close()
    there.close()


@pytest.mark.attack("S3-09")
def test_the_sum_of_all_snapshots_is_bounded(workspace: Workspace) -> None:
    workspace.write_file("f", b"x" * (6 * MIB))
    kept = []
    with pytest.raises(LimitExceeded, match="snapshots"):
        for _ in range(100):
            kept.append(workspace.snapshot())
    assert workspace._snapshots is not None
    assert 2 <= len(kept) < 40
    assert disk_use(workspace._snapshots._root.path) <= 16 * 8 * MIB
    workspace.restore(kept[0])


def test_restoring_again_and_again_is_charged_once(workspace: Workspace) -> None:
    workspace.write_file("f", b"x" * (5 * MIB))
    snapshot = workspace.snapshot()
    for _ in range(4):
        workspace.restore(snapshot)
    workspace.write_file("g", b"x" * (2 * MIB))
    with pytest.raises(LimitExceeded):
        workspace.write_file("h", b"x" * (2 * MIB))


DELETE = "*** Begin Patch\n*** Delete File: {}\n*** End Patch"


@pytest.mark.attack("S3-09")
@pytest.mark.parametrize("way", ["remove", "replace", "patch"])
@pytest.mark.parametrize("kind", ["link", "sparse"])
def test_what_a_guest_made_without_space_is_not_refunded(workspace: Workspace, kind: str, way: str) -> None:
    """A second name of a file, and a file of holes: removing them frees nothing."""
    workspace.write_file("full", b"x" * (6 * MIB))
    place = Path(workspace.host_path)
    for number in range(3):
        name = f"free{number}"
        if kind == "link":
            (place / name).hardlink_to(place / "full")
        else:
            (place / name).touch()
            os.truncate(place / name, 6 * MIB)
        if way == "remove":
            workspace.remove(name)
        elif way == "replace":
            workspace.write_file(name, b"")
        else:
            workspace.apply_patch(DELETE.format(name))
    with pytest.raises(LimitExceeded, match="8 MB"):
        workspace.write_file("more", b"x" * (3 * MIB))


def write_small(root: Root) -> None:
    files.write_file(root, ("shared",), b"y" * 4096)


@pytest.mark.attack("S2-24")
@pytest.mark.parametrize("second", [write_small, lambda root: remove(root, ("shared",)), clear])
def test_a_file_is_refunded_once_if_two_callers_replace_it(
    second: Callable[[Root], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second caller comes while the first one has not replaced the file yet."""
    put_file, is_putting, has_ended = files.put_file, threading.Event(), threading.Event()

    def put_late(*args: Any) -> None:
        if not is_putting.is_set():
            is_putting.set()
            has_ended.wait(0.5)  # in vain, since the second caller has to wait
        put_file(*args)

    with Root(tmp_path, quota=Quota(4)) as root:
        files.write_file(root, ("shared",), b"x" * MIB)
        files.write_file(root, ("other",), b"x" * MIB)
        monkeypatch.setattr(files, "put_file", put_late)
        first = threading.Thread(target=write_small, args=[root])
        first.start()
        assert is_putting.wait(30)
        second(root)
        has_ended.set()
        first.join()
        assert root._quota is not None
        assert 4 * MIB - root._quota.room == disk_use(str(tmp_path))


def test_a_directory_that_exists_by_now_is_not_charged(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with Root(tmp_path, quota=Quota(1)) as root:
        root.make_one(root.fd, "made", ("made",))
        assert root._quota is not None and root._quota.room == MIB


def test_a_name_is_refunded_as_it_was_charged(tmp_path: Path) -> None:
    """An empty file has no blocks, nor has a directory on some file systems; each name is charged one."""
    with Root(tmp_path, quota=Quota(1)) as root:
        for _ in range(300):
            files.write_file(root, ("directory", "below", "empty"), b"")
            files.write_file(root, ("directory", "below", "empty"), b"")
            remove(root, ("directory",))
        assert root._quota is not None and root._quota.room == MIB


def test_a_tree_of_names_is_restored_again_and_again(workspace: Workspace) -> None:
    """Each time it would have been charged anew, until the work directory was emptied and not filled again."""
    for number in range(300):
        workspace.write_file(f"d/{number}", b"")
    snapshot = workspace.snapshot()
    for _ in range(10):
        workspace.restore(snapshot)
        workspace.remove_snapshot(workspace.snapshot())
    assert len(workspace.list_dir("d")) == 300
    assert workspace._snapshots is not None and workspace._snapshots._root._quota is not None
    assert 16 * 8 * MIB - workspace._snapshots._root._quota.room < 2 * MIB


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_directory_that_had_more_than_the_limit_is_restored(tmp_path: Path, is_removed: bool) -> None:
    """A restore that stops at the limit has removed the caller's files."""
    (tmp_path / "large").write_bytes(b"x" * (12 * MIB))
    workspace = Workspace(tmp_path, disk_mb=8)
    snapshot = workspace.snapshot()
    if is_removed:
        (tmp_path / "large").unlink()
    workspace.restore(snapshot)
    assert (tmp_path / "large").stat().st_size == 12 * MIB
    if not is_removed:
        workspace.write_file("small", b"x")
    with pytest.raises(LimitExceeded):
        workspace.write_file("more", b"x" * (8 * MIB))
    workspace.close()
