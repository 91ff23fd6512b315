"""Sparse files: copies keep their holes, and copies are charged to the quota of their target."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers import require

from warmcell.core.types import MIB
from warmcell.workspace.copy import copy_tree
from warmcell.workspace.errors import LimitExceeded
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
