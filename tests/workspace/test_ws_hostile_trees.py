"""S2-03, S2-24 and S2-35: trees made to hide, to cost, or to get round a limit. Cost is counted in system calls."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.helpers import is_root

from warmcell.workspace import openat2
from warmcell.workspace.archive.members import ArchiveLimits
from warmcell.workspace.diff import FsChange
from warmcell.workspace.errors import AccessDenied, ArchiveRejected, LimitExceeded, PatchRejected
from warmcell.workspace.remove import clear, remove_directory
from warmcell.workspace.root import Root
from warmcell.workspace.walk import TreeLimits, walk
from warmcell.workspace.workspace import Workspace

CALLS = """open mkdir stat lstat fstat scandir listdir rename replace unlink rmdir dup close readlink symlink fchmod chmod
    read write"""


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    (tmp_path / "ws").mkdir()
    made = Workspace(tmp_path / "ws", disk_mb=64)
    yield made
    made.close()
    for name in os.listdir(tmp_path):  # pytest's own removal fails on the deep trees that some tests make
        remove_directory(str(tmp_path / name))


@contextmanager
def count_system_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many calls of the system the body makes."""
    total = [0]

    def counting(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            total[0] += 1
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in CALLS.split():
            patch.setattr(os, name, counting(getattr(os, name)))
        patch.setattr(openat2, "open_beneath", counting(openat2.open_beneath))
        yield total


def make_deep(base: str | Path, levels: int, files: int = 0, mode: int = 0o755) -> None:
    """A chain of directories, with files in the last; made without a path longer than the system takes."""
    here = os.open(base, os.O_RDONLY)
    chain = [here]
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        here = os.open("d", os.O_RDONLY, dir_fd=here)
        chain = [*chain[-1:], here]
        if len(chain) > 1:
            os.close(chain[0])
    for number in range(files):
        os.close(os.open(f"f{number}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=here))
    os.fchmod(here, mode)
    os.close(here)


def tar_of(names: list[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    return buffer.getvalue()


def patch_of(names: list[str]) -> str:
    return "".join(f"--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+x\n" for name in names)


def deep_names(count: int, levels: int) -> list[str]:
    """Files that lie deep, in two branches by turns: whoever walks from the top each time walks far."""
    return [f"{'lr'[number % 2]}/" + "d/" * levels + f"f{number}" for number in range(count)]


OPERATIONS: dict[str, Callable[[Workspace, int, int], object]] = {
    "snapshot": lambda workspace, files, levels: workspace.snapshot(),
    "diff": lambda workspace, files, levels: workspace.diff(),
    "download": lambda workspace, files, levels: workspace.download(),
    "remove": lambda workspace, files, levels: workspace.remove("deep"),
    "upload": lambda workspace, files, levels: workspace.upload(Path(workspace.host_path) / "deep", "copy"),
    "extract": lambda workspace, files, levels: workspace.upload(tar_of(deep_names(files, levels)), "x", extract=True),
    "apply_patch": lambda workspace, files, levels: workspace.apply_patch(patch_of(deep_names(files, levels))),
}


@pytest.mark.attack("S2-35")
@pytest.mark.parametrize("name", list(OPERATIONS))
def test_twice_the_depth_and_twice_the_files_cost_twice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps(factor: int) -> int:
        base = tmp_path / str(factor)
        (base / "deep").mkdir(parents=True)
        make_deep(base / "deep", 200 * factor, 40 * factor)
        workspace = Workspace(base)
        try:
            workspace.begin()
            with count_system_calls(monkeypatch) as total:
                OPERATIONS[name](workspace, 40 * factor, 200 * factor)
            return total[0]
        finally:
            workspace.close()
            remove_directory(str(base))

    small, large = steps(1), steps(2)
    assert small > 200
    assert large < 2.3 * small


@pytest.mark.attack("S2-35")
def test_a_long_way_back_up_is_not_walked_again_for_each_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two directories on every level, so that the walk goes down the first and comes back for the second."""

    def steps(levels: int) -> int:
        base = tmp_path / str(levels)
        here = base
        for _ in range(levels):
            (here / "a").mkdir(parents=True)
            (here / "b").mkdir()
            here /= "a"
        root = Root(base)
        with count_system_calls(monkeypatch) as total:
            assert len(list(walk(root))) == 2 * levels
        root.close()
        return total[0]

    assert steps(600) < 2.2 * steps(300)


@pytest.mark.attack("S2-35")
def test_directories_that_names_imply_are_counted(workspace: Workspace) -> None:
    names = [f"{number}/" + "d/" * 2000 + "f" for number in range(200)]
    with pytest.raises(ArchiveRejected, match="10000 files and directories"):
        workspace.upload(tar_of(names), extract=True)
    with pytest.raises(PatchRejected, match="10000 files and directories"):
        workspace.apply_patch(patch_of(names))
    assert os.listdir(workspace.host_path) == []


@pytest.mark.attack("S2-35")
def test_a_tree_whose_paths_are_too_much_together_is_refused(tmp_path: Path) -> None:
    make_deep(tmp_path, 300, 50)
    root = Root(tmp_path)
    assert len(list(walk(root, (), TreeLimits(path_bytes=200_000)))) == 350
    with pytest.raises(LimitExceeded, match="too many bytes of paths"):
        list(walk(root, (), TreeLimits(path_bytes=100_000)))
    with pytest.raises(LimitExceeded, match="takes too long"):
        list(walk(root, (), TreeLimits(seconds=-1.0)))
    clear(root)
    root.close()


@pytest.mark.attack("S2-35")
def test_extended_headers_are_small_and_few(workspace: Workspace) -> None:
    def with_headers(size: int, count: int) -> bytes:
        record = b"12 comment=\n"
        payload = record * (size // len(record))
        header = tarfile.TarInfo("pax")
        header.type, header.size = tarfile.XHDTYPE, len(payload)
        block = header.tobuf(tarfile.USTAR_FORMAT) + payload + bytes(-len(payload) % 512)
        return block * count + tarfile.TarInfo("f").tobuf(tarfile.USTAR_FORMAT)

    assert workspace.upload(with_headers(60_000, 2), extract=True).files == 1
    with pytest.raises(ArchiveRejected, match="too long"):
        workspace.upload(with_headers(70_000, 1), extract=True)
    with pytest.raises(ArchiveRejected, match="too long"):
        workspace.upload(with_headers(60_000, 150), extract=True, limits=ArchiveLimits(ratio=10_000))


@pytest.mark.attack("S2-35")
def test_a_patch_searches_no_longer_for_being_cut_into_files(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmcell.workspace.patch.hunks._MAX_COMPARISONS", 10_000)
    for number in range(10):
        workspace.write_file(f"f{number}", "a\n" * 900 + "b\n")
    patches = [f"--- a/f{number}\n+++ b/f{number}\n@@ -1 +1 @@\n-b\n+c\n" for number in range(10)]
    workspace.apply_patch("".join(patches[:4]))
    with pytest.raises(PatchRejected, match="too long"):
        workspace.apply_patch("".join(patches[4:]))


@pytest.mark.attack("S2-03")
@pytest.mark.parametrize("mode", [0o311, 0o000, 0o444, 0o600], ids=oct)
def test_a_closed_directory_hides_nothing_from_a_difference(workspace: Workspace, mode: int) -> None:
    workspace.begin()
    planted = Path(workspace.host_path) / "innocent"
    planted.mkdir()
    (planted / "planted").write_text("payload")
    planted.chmod(mode)
    changes = workspace.diff()
    planted.chmod(0o755)
    if is_root():  # every door is open to root
        assert changes == [FsChange("innocent/planted", "created", 7)]
    else:
        assert changes == [FsChange("innocent", "created", 0, "closed")]


@pytest.mark.attack("S2-03")
@pytest.mark.skipif(is_root(), reason="every door is open to root")
def test_a_directory_that_was_and_stays_closed_is_never_said_to_be_unchanged(workspace: Workspace) -> None:
    door = Path(workspace.host_path) / "door"
    (door / "room").mkdir(parents=True)
    (door / "room/file").write_text("old")
    workspace.begin()
    door.chmod(0)
    # What was seen in it before is not said to be deleted: it may be there.
    assert workspace.diff() == [FsChange("door", "created", 0, "closed")]
    workspace.close()
    again = Workspace(workspace.host_path)
    again.begin()
    assert again.diff() == [FsChange("door", "modified", 0, "closed")]
    door.chmod(0o755)
    again.close()


@pytest.mark.attack("S2-03")
@pytest.mark.skipif(is_root(), reason="every door is open to root")
def test_a_file_that_was_and_stays_unreadable_is_never_said_to_be_unchanged(workspace: Workspace) -> None:
    secret = Path(workspace.host_path) / "secret"
    secret.write_text("one")
    secret.chmod(0)
    workspace.begin()
    secret.chmod(0o600)
    secret.write_text("two")
    secret.chmod(0)
    assert workspace.diff() == [FsChange("secret", "modified", 3)]


@pytest.mark.attack("S2-03")
@pytest.mark.skipif(is_root(), reason="every door is open to root")
def test_what_is_closed_is_named_or_refused_elsewhere_too(workspace: Workspace) -> None:
    door = Path(workspace.host_path) / "door"
    door.mkdir()
    (door / "file").touch()
    door.chmod(0)
    assert workspace.snapshot().skipped == ("door",)
    for call in (workspace.list_dir, workspace.download, lambda path: workspace.write_file(f"{path}/x", "")):
        with pytest.raises(AccessDenied) as caught:
            call("door")
        assert isinstance(caught.value, PermissionError)
    door.chmod(0o755)


@pytest.mark.attack("S2-24")
def test_what_file_methods_write_counts_against_the_disk_limit(tmp_path: Path) -> None:
    workspace = Workspace(disk_mb=1)
    quarter = b"x" * (256 << 10)
    for number in range(3):
        workspace.write_file(f"f{number}", quarter)
    for call in (
        lambda: workspace.write_file("more", quarter + b"x"),
        lambda: workspace.upload(quarter * 2, "more"),
        lambda: workspace.upload(tar_of([f"t{number}" for number in range(100)]), extract=True),
        lambda: workspace.apply_patch("--- /dev/null\n+++ b/more\n@@ -0,0 +1 @@\n+" + "y" * (300 << 10) + "\n"),
        lambda: workspace.mkdir("/".join("d" * 80), parents=True),
    ):
        with pytest.raises(LimitExceeded, match="1 MB of disk"):
            call()
    workspace.write_file("f0", quarter)  # in place of what was there, and so nothing more
    workspace.remove("f0")
    workspace.write_file("more", quarter)
    workspace.close()


@pytest.mark.attack("S2-24")
def test_room_that_was_never_taken_cannot_be_given_back(tmp_path: Path) -> None:
    workspace = Workspace(disk_mb=1)
    workspace.write_file("f", b"x" * (1 << 20))
    for number in range(2):
        sparse = Path(workspace.host_path) / f"sparse{number}"
        sparse.touch()
        os.truncate(sparse, 1 << 40)
    workspace.remove("sparse0")
    with pytest.raises(LimitExceeded):
        workspace.write_file("g", b"x")
    with pytest.raises(LimitExceeded):
        workspace.write_file("sparse1", b"x")
    workspace.close()


@pytest.mark.attack("S2-24")
def test_an_upload_that_fails_is_not_paid_for(tmp_path: Path) -> None:
    workspace = Workspace(disk_mb=1)
    workspace.write_file("a", "one\n")
    huge = "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+" + "y" * (900 << 10) + "\n"
    more = "--- /dev/null\n+++ b/z/new\n@@ -0,0 +1 @@\n+" + "y" * (900 << 10) + "\n"
    with pytest.raises(LimitExceeded):
        workspace.apply_patch(huge + more)
    assert workspace.read_text("a") == "one\n"
    workspace.write_file("b", b"x" * (1000 << 10))
    workspace.close()


@pytest.mark.parametrize("mode", [0o444, 0o400, 0o755, 0o640, 0o4755])
def test_a_file_that_is_written_keeps_its_mode(workspace: Workspace, mode: int) -> None:
    path = Path(workspace.host_path) / "f"
    path.write_text("old")
    path.chmod(mode)
    workspace.write_file("f", "new")
    assert stat.S_IMODE(path.stat().st_mode) == mode & 0o777
    workspace.apply_patch("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-new\n\\ No newline\n+newer\n")
    assert stat.S_IMODE(path.stat().st_mode) == mode & 0o777
    assert path.read_text() == "newer\n"


@pytest.mark.parametrize("moment", [2**62, -(2**62)])
def test_times_of_any_year_are_reported_within_bounds(moment: int) -> None:
    """A file system in memory keeps such times, and a guest sets them."""
    with TemporaryDirectory(dir="/dev/shm") as directory:
        workspace = Workspace(directory, disk_mb=64)
        Path(directory, "x").write_text("x")
        os.utime(f"{directory}/x", (moment, moment))
        year = datetime.fromtimestamp(workspace.stat("x").modified, UTC).year
        packed = workspace.download()
        workspace.close()
    assert year in (1, 9999) and b"e+" not in packed
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert 0 <= archive.getmembers()[0].mtime < 8**11
