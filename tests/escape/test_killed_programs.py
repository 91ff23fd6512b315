"""What a program that is killed leaves behind, the next start of the same user removes; of anybody else's, nothing."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

import pytest
from tests.escape.killing import KilledPrograms
from tests.helpers import in_a_fork

from warmcell.lifetime import held_directories
from warmcell.lifetime.held_directories import PREFIXES, create_held_directory, find_abandoned, hold
from warmcell.toolbox.signed_directory import SignedDirectory
from warmcell.workspace import private_directory
from warmcell.workspace.private_directory import PrivateDirectory, sweep
from warmcell.workspace.workspace import Workspace


@pytest.mark.attack("S2-21")
@pytest.mark.needs("user namespaces", "bwrap")
def test_after_a_kill_the_next_start_leaves_nothing(tmp_path: Path) -> None:
    programs = KilledPrograms(tmp_path)
    for _ in range(4):
        programs.kill_one()
    assert programs.seen, "the test must leave something to be swept"
    programs.start_another()
    assert programs.leftovers() == []


@pytest.mark.attack("S2-21")
def test_what_somebody_holds_is_left_alone(tmp_path: Path) -> None:
    mine = create_held_directory("warmcell-work-", str(tmp_path))
    left = tmp_path / "warmcell-work-left"
    left.mkdir()
    (left / "deep").mkdir(0o000)
    sweep(str(tmp_path), PREFIXES)
    assert os.listdir(tmp_path) == [os.path.basename(mine.path)]
    mine.release()
    sweep(str(tmp_path), PREFIXES)
    assert os.listdir(tmp_path) == []


@pytest.mark.attack("S2-21")
def test_only_directories_of_ours_are_taken_for_leftovers(tmp_path: Path) -> None:
    """Links, files and other names stay, and what a link names most of all."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (tmp_path / "warmcell-work-link").symlink_to(tmp_path / "precious")
    (tmp_path / "warmcell-work-file").write_text("x")
    (tmp_path / "warmcell-notes").mkdir()
    (tmp_path / "warmcell-work-inner").mkdir()
    (tmp_path / "warmcell-work-inner" / "out").symlink_to(tmp_path / "precious")
    sweep(str(tmp_path), PREFIXES)
    names = {"precious", "warmcell-work-link", "warmcell-work-file", "warmcell-notes"}
    assert set(os.listdir(tmp_path)) == names and (tmp_path / "precious" / "file").read_text() == "x"


@pytest.mark.attack("S2-21")
@pytest.mark.root
def test_directories_of_other_users_are_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "warmcell-work-theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    assert list(find_abandoned(str(tmp_path), PREFIXES)) == [] and hold(str(theirs)) is None
    sweep(str(tmp_path), PREFIXES)
    assert theirs.exists()


@pytest.mark.attack("S2-21")
def test_a_fork_that_ends_takes_nothing_with_it_and_keeps_alive_what_it_uses(tmp_path: Path) -> None:
    workspace = Workspace()
    try:
        assert in_a_fork(workspace.close, ends="sys.exit") is None
        assert os.path.isdir(workspace.host_path)
        workspace.write_file("still", "here")
    finally:
        workspace.close()
    assert not os.path.exists(workspace.host_path)


@pytest.mark.attack("S2-21")
def test_a_sweep_between_making_and_holding_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    def swept_first(path: str, **more: bool) -> object:
        if len(taken) < 3:
            taken.append(path)
            os.rmdir(path)
        return hold(path, **more)

    monkeypatch.setattr(held_directories, "hold", swept_first)
    held = create_held_directory("warmcell-work-", str(tmp_path))
    assert os.path.isdir(held.path) and held.path not in taken and len(taken) == 3
    held.release()


@pytest.mark.attack("S2-21")
def test_a_sweep_right_after_making_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, taken = tempfile.mkdtemp, list[str]()

    def swept_at_once(**options: str) -> str:
        path = make(**options)
        if len(taken) < 3:
            taken.append(path)
            os.rmdir(path)
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", swept_at_once)
    held = create_held_directory("warmcell-work-", str(tmp_path))
    assert os.path.isdir(held.path) and len(taken) == 3
    held.release()


@pytest.mark.attack("S2-21")
def test_a_private_directory_is_gone_with_close_however_it_looks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(private_directory, "_has_swept", True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = PrivateDirectory("run")
    os.makedirs(os.path.join(made.path, "a", "b"))
    os.chmod(os.path.join(made.path, "a"), 0)
    made.close()
    made.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.attack("S2-21")
def test_files_that_nobody_writes_any_more_are_swept_from_the_caches(tmp_path: Path) -> None:
    kept = tmp_path / "cache"
    SignedDirectory(kept)
    for name in (".left.signed.0", ".held.signed.0"):
        (kept / name).write_text("half")
        os.utime(kept / name, (1, 1))
    (kept / ".young.signed.0").write_text("half")
    with (kept / ".held.signed.0").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        SignedDirectory(kept)
        assert {path.name for path in kept.glob(".*")} == {".held.signed.0", ".young.signed.0"}
    SignedDirectory(kept)
    assert {path.name for path in kept.iterdir()} == {"secret", ".young.signed.0"}
