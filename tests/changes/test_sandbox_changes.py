"""`Sandbox(changes="ask")`: guests see the directory and write to a layer; commit, discard and branches."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.changes.tree import read_tree
from tests.helpers import PATIENCE, is_root, until_async

from warmcell import AsyncSandbox, FetchPolicy, Limits, Sandbox
from warmcell.changes.layer import ChangeLayer
from warmcell.errors import (
    BackendUnavailable,
    FetchFailed,
    InvalidRequest,
    LimitExceeded,
    SandboxDestroyed,
    SandboxError,
)

pytestmark = [pytest.mark.needs("user namespaces"), pytest.mark.claim("WC-FS-8")]

EDIT = """
sed -i s/one/ONE/ a.txt; rm src/b.py; mkdir new; echo hi > new/file; chmod +x new/file
mv src/c.py src/d.py; ln -s a.txt link; echo all: > Makefile
"""


def kinds(sandbox: Sandbox) -> dict[str, str]:
    return {change.path: change.kind for change in sandbox.changes()}


def test_the_host_is_not_written_before_commit(sandbox: Sandbox, directory: Path) -> None:
    before = read_tree(directory)
    assert sandbox.sh(EDIT).ok
    assert read_tree(directory) == before
    assert kinds(sandbox) == {
        "Makefile": "added",
        "a.txt": "modified",
        "link": "added",
        "new/file": "added",
        "src/b.py": "deleted",
        "src/d.py": "renamed",
    }
    flagged = [change for change in sandbox.changes() if change.is_flagged]
    assert [change.path for change in flagged] == ["Makefile"]
    assert flagged[0].flag_reason
    renamed = next(change for change in sandbox.changes() if change.kind == "renamed")
    assert renamed.old_path == "src/c.py"


def test_file_methods_see_what_guests_see(sandbox: Sandbox, directory: Path) -> None:
    assert sandbox.sh(EDIT).ok
    assert sandbox.read_text("a.txt").startswith("ONE")
    assert sandbox.read_text(directory / "new/file") == "hi\n"
    assert [entry.name for entry in sandbox.list_dir("src")] == ["d.py"]
    assert not sandbox.exists("src/b.py")
    sandbox.write_file("written.txt", "by the host program")
    sandbox.remove("src/d.py")
    assert sandbox.sh("cat written.txt; ls src").stdout == "by the host program"
    assert {change.path: change.kind for change in sandbox.diff()}["written.txt"] == "created"
    assert sandbox.read_before("src/b.py") == b"print('b')\n"
    assert not (directory / "written.txt").exists()


def test_a_live_cage_and_runs_share_the_changes(sandbox: Sandbox) -> None:
    session = sandbox.session("python")
    assert session.run("open('a.txt').read()[:3]").value == "'one'"
    sandbox.sh("echo changed > a.txt; echo new > fresh")
    assert session.run("open('a.txt').read(), open('fresh').read()").value == "('changed\\n', 'new\\n')"
    session.run("open('a.txt', 'a').write('more')")
    assert sandbox.sh("cat a.txt").stdout == "changed\nmore"


def test_commit_writes_everything_but_flagged_paths(sandbox: Sandbox, directory: Path) -> None:
    sandbox.sh(EDIT)
    dry = sandbox.commit(dry_run=True)
    assert (directory / "a.txt").read_text().startswith("one")
    report = sandbox.commit()
    assert report == dry
    assert set(report.committed) == {"a.txt", "link", "new/file", "src/b.py", "src/d.py"}
    assert report.skipped == ("Makefile",)
    assert not report.conflicts
    assert sorted(read_tree(directory)) == ["a.txt", "link", "new/file", "src/d.py"]
    assert os.access(directory / "new/file", os.X_OK)
    assert kinds(sandbox) == {"Makefile": "added"}
    assert sandbox.commit(allow_flagged=["Makefile"]).committed == ("Makefile",)
    assert (directory / "Makefile").read_text() == "all:\n"
    assert kinds(sandbox) == {}


def test_commit_and_discard_of_some_paths(sandbox: Sandbox, directory: Path) -> None:
    sandbox.sh(EDIT)
    assert set(sandbox.commit(["src", str(directory / "new/file")]).committed) == {"src/b.py", "src/d.py", "new/file"}
    assert set(kinds(sandbox)) == {"Makefile", "a.txt", "link"}
    sandbox.discard(["a.txt", "Makefile"])
    assert set(kinds(sandbox)) == {"link"}
    assert sandbox.sh("head -1 a.txt; ls").stdout.split() == ["one", "a.txt", "link", "new", "src"]
    with pytest.raises(InvalidRequest, match="no changes"):
        sandbox.commit(["nowhere"])


def test_the_directory_itself_stands_for_all_changes(sandbox: Sandbox, directory: Path) -> None:
    sandbox.sh("echo 1 > one; mkdir sub; echo 2 > sub/two")
    for path in (".", "./", str(directory), f"{directory}/"):
        assert set(sandbox.commit([path], dry_run=True).committed) == {"one", "sub/two"}
    with pytest.raises(InvalidRequest, match="no changes"):
        sandbox.commit([""])
    sandbox.discard([str(directory)])
    assert kinds(sandbox) == {}


def test_discard_brings_everything_back(sandbox: Sandbox, directory: Path) -> None:
    before = read_tree(directory)
    sandbox.sh(EDIT + "rm -r src; echo x > src; chmod 600 a.txt; mkdir -p deep/er")
    sandbox.discard()
    assert sandbox.changes() == []
    shown = {name: sandbox.read_text(name) for name in before}
    assert shown == before
    assert [entry.name for entry in sandbox.list_dir()] == ["a.txt", "src"]


def test_changes_that_cannot_be_listed_do_not_replace_the_result_of_a_run(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LimitExceeded(".", "is in a tree with too many entries", limit=1)

    monkeypatch.setattr("warmcell.changes.detect.Detector.detect", fail)
    assert sandbox.sh("echo done").stdout == "done\n"
    with pytest.raises(LimitExceeded):
        sandbox.changes()


def test_both_sides_changed(sandbox: Sandbox, directory: Path) -> None:
    """Text merges, the rest is a conflict, and nothing of the host's is lost."""
    (directory / "same").write_text("1\n2\n3\n4\n5\n")
    sandbox.sh("sed -i s/one/ONE/ a.txt; sed -i s/b/B/ src/b.py; rm src/c.py; echo mine > both")
    (directory / "a.txt").write_text("one\ntwo\nthree\nfour\nfive\nSIX\n")
    (directory / "src/b.py").write_text("print('host')\n")
    (directory / "src/c.py").write_text("print('host')\n")
    (directory / "both").write_text("theirs\n")
    report = sandbox.commit()
    assert report.merged == ("a.txt",)
    assert sorted(conflict.path for conflict in report.conflicts) == ["both", "src/b.py", "src/c.py"]
    assert (directory / "a.txt").read_text() == "ONE\ntwo\nthree\nfour\nfive\nSIX\n"
    assert (directory / "src/b.py").read_text() == (directory / "src/c.py").read_text() == "print('host')\n"
    assert (directory / "both").read_text() == "theirs\n"
    assert sandbox.read_text("a.txt") == "ONE\ntwo\nthree\nfour\nfive\nSIX\n"
    assert "a.txt" not in kinds(sandbox)


def test_a_merged_text_that_guests_do_not_get_is_merged_again(
    sandbox: Sandbox, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next commit does not undo the host's part."""
    sandbox.sh("sed -i s/one/ONE/ a.txt")
    (directory / "a.txt").write_text("one\ntwo\nthree\nfour\nfive\nSIX\n")

    def fail(*_: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patch:
        patch.setattr("warmcell.workspace.files.put_file", fail)
        assert sandbox.commit().merged == ("a.txt",)
    assert sandbox.commit().merged == ("a.txt",)
    assert (directory / "a.txt").read_text() == "ONE\ntwo\nthree\nfour\nfive\nSIX\n"
    assert sandbox.read_text("a.txt") == "ONE\ntwo\nthree\nfour\nfive\nSIX\n"
    assert kinds(sandbox) == {}


def test_a_file_that_the_host_deleted_stays_deleted(sandbox: Sandbox, directory: Path) -> None:
    sandbox.sh("echo more >> a.txt")
    (directory / "a.txt").unlink()
    assert [conflict.reason for conflict in sandbox.commit().conflicts] == ["deleted on the host"]
    assert not (directory / "a.txt").exists()


def test_what_was_committed_does_not_undo_later_work_of_the_host(sandbox: Sandbox, directory: Path) -> None:
    sandbox.sh("echo mine > a.txt")
    sandbox.commit()
    (directory / "a.txt").write_text("the host's\n")
    assert sandbox.changes() == []
    assert sandbox.commit().committed == ()
    assert (directory / "a.txt").read_text() == "the host's\n"


def test_a_mode_that_only_the_host_changed_stays(sandbox: Sandbox, directory: Path) -> None:
    sandbox.sh("echo mine > a.txt; touch src/b.py; chmod 700 src/c.py")
    sandbox.commit()
    for name in ("a.txt", "src/b.py"):
        (directory / name).chmod(0o440)
    assert "a.txt" not in kinds(sandbox)
    sandbox.commit()
    modes = {name: (directory / name).stat().st_mode & 0o777 for name in ("a.txt", "src/b.py", "src/c.py")}
    assert modes == {"a.txt": 0o440, "src/b.py": 0o440, "src/c.py": 0o700}
    sandbox.sh("chmod 500 src/c.py")
    assert sandbox.commit(["src/c.py"]).committed == ("src/c.py",)


def test_a_mode_of_the_host_that_a_commit_kept_stays(sandbox: Sandbox, directory: Path) -> None:
    sandbox.sh("echo mine > a.txt")
    assert kinds(sandbox) == {"a.txt": "modified"}
    (directory / "a.txt").chmod(0o440)
    assert sandbox.commit().committed == ("a.txt",)
    assert kinds(sandbox) == {}
    assert sandbox.commit().committed == ()
    assert (directory / "a.txt").stat().st_mode & 0o777 == 0o440


def test_the_patch_is_one_that_git_applies(sandbox: Sandbox, directory: Path, tmp_path: Path) -> None:
    sandbox.sh(EDIT + "printf 'no newline' > 'odd \"name'; chmod +x a.txt")
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", directory, copy], check=True)
    patch = sandbox.changes_patch()
    subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=copy, check=True)
    sandbox.commit(allow_flagged=["Makefile"])
    assert read_tree(copy) == read_tree(directory)
    assert os.access(copy / "a.txt", os.X_OK)


def test_a_branch_goes_its_own_way(sandbox: Sandbox, directory: Path) -> None:
    sandbox.sh("echo first > a.txt; rm src/b.py")
    with sandbox.branch() as branch:
        assert kinds(branch) == {"a.txt": "modified", "src/b.py": "deleted"}
        branch.sh("echo second > other")
        sandbox.sh("echo third > third")
        assert set(kinds(branch)) == {"a.txt", "src/b.py", "other"}
        assert set(branch.commit().committed) == {"a.txt", "src/b.py", "other"}
    assert sorted(read_tree(directory)) == ["a.txt", "other", "src/c.py"]
    assert set(kinds(sandbox)) == {"third"}


async def test_a_branch_of_a_sandbox_that_is_destroyed_meanwhile_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changes were removed while they were copied: the branch began with some of them."""
    copy, is_copying, may_copy = ChangeLayer.copy_to, threading.Event(), threading.Event()

    def copy_late(layer: ChangeLayer, place: str) -> None:
        is_copying.set()
        assert may_copy.wait(PATIENCE)
        copy(layer, place)

    monkeypatch.setattr(ChangeLayer, "copy_to", copy_late)
    async with AsyncSandbox(directory, changes="ask") as sandbox:
        await sandbox.write_file("made", "x")
        branching = asyncio.create_task(sandbox.branch())
        assert await asyncio.to_thread(is_copying.wait, PATIENCE)
        destroying = asyncio.create_task(sandbox.destroy())
        await until_async(lambda: sandbox._driver.is_closed)
        may_copy.set()
        with pytest.raises(SandboxDestroyed):
            await branching
        await destroying


def test_a_branch_starts_with_the_current_network_rules(open_sandbox) -> None:
    sandbox = open_sandbox(fetch_policy=FetchPolicy(("127.0.0.1:9",)))
    sandbox.update_network([])
    with sandbox.branch() as branch, pytest.raises(FetchFailed, match="not allowed at the moment"):
        branch.fetch("http://127.0.0.1:9/")


def test_kept_changes_go_on(sandbox: Sandbox, directory: Path, open_sandbox, state_home: Path) -> None:
    sandbox.sh("echo kept > a.txt")
    place = sandbox.keep_changes()
    sandbox.close()
    assert list(state_home.iterdir()) == [Path(place)]
    with open_sandbox(changes="resume") as resumed:
        assert kinds(resumed) == {"a.txt": "modified"}
        assert resumed.commit().committed == ("a.txt",)
    assert list(state_home.iterdir()) == []
    assert (directory / "a.txt").read_text() == "kept\n"


@pytest.mark.parametrize(
    "step", ["warmcell.changes.layer.ChangeLayer._open", "warmcell.sandbox.local.context.SandboxContext.make_guest"]
)
def test_kept_changes_outlive_a_sandbox_that_could_not_be_made(
    sandbox: Sandbox, open_sandbox, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Such as one that names an image that is not there."""
    sandbox.sh("echo kept > a.txt")
    sandbox.keep_changes()
    sandbox.close()

    def fail(*_: object) -> None:
        raise BackendUnavailable("not now")

    with monkeypatch.context() as patch, pytest.raises(BackendUnavailable, match="not now"):
        patch.setattr(step, fail)
        open_sandbox(changes="resume")
    with open_sandbox(changes="resume") as resumed:
        assert kinds(resumed) == {"a.txt": "modified"}


def test_resuming_writes_nothing_that_a_full_disk_could_cut_off(
    sandbox: Sandbox, open_sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.sh("echo kept > a.txt")
    sandbox.keep_changes()
    sandbox.close()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("warmcell.changes.layer.put_file", fail)
        resumed = open_sandbox(changes="resume")
    assert kinds(resumed) == {"a.txt": "modified"}


def test_changes_that_are_always_kept(open_sandbox, directory: Path, state_home: Path) -> None:
    """As for a model's client, which may disconnect at any time."""
    open_sandbox(changes="keep").close()
    assert list(state_home.iterdir()) == []
    with open_sandbox(changes="keep") as first:
        first.sh("echo kept > a.txt")
    open_sandbox(changes="keep").close()
    with open_sandbox(changes="resume") as resumed:
        assert kinds(resumed) == {"a.txt": "modified"}
    assert list(state_home.iterdir()) == []


def test_changes_that_cannot_be_listed_are_kept(open_sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_sandbox(changes="keep")
    first.sh("echo kept > a.txt")

    def fail(*_: object) -> None:
        raise LimitExceeded(".", "is in a tree with too many entries", limit=1)

    with monkeypatch.context() as patch:
        patch.setattr("warmcell.changes.detect.Detector.detect", fail)
        first.close()
    with open_sandbox(changes="resume") as resumed:
        assert kinds(resumed) == {"a.txt": "modified"}


def test_closing_completes_a_commit_that_failed(
    sandbox: Sandbox, directory: Path, state_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.sh("echo 1 > one; echo 2 > two")

    def fail(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(SandboxError):
        patch.setattr("warmcell.changes.commit.Committer._update_base", fail)
        sandbox.commit()
    sandbox.close()
    assert sorted(os.listdir(directory)) == ["a.txt", "one", "src", "two"]
    assert list(state_home.iterdir()) == []


def test_a_change_whose_base_cannot_be_recorded_is_not_left_out(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk."""
    sandbox.write_file("a.txt", "new\n")
    with monkeypatch.context() as patch, pytest.raises(SandboxError, match="record the host's version"):
        patch.setattr("warmcell.changes.base.OPEN_DIRECTORY", os.O_WRONLY)
        sandbox.changes()
    assert kinds(sandbox) == {"a.txt": "modified"}


def test_at_another_path_and_with_the_asynchronous_form(directory: Path) -> None:
    import asyncio

    async def use() -> None:
        async with AsyncSandbox(work_dir=directory, changes="ask") as sandbox:
            assert (await sandbox.sh("pwd; echo x > /work/x; ln -s /work/a.txt inside")).stdout == "/work\n"
            changes = {change.path: change.is_flagged for change in await sandbox.changes()}
            assert changes == {"x": False, "inside": True}  # on the host, /work is something else
            assert (await sandbox.commit()).committed == ("x",)

    asyncio.run(use())
    assert (directory / "x").read_text() == "x\n"


def test_what_the_disk_or_a_guest_prevents_is_a_typed_error(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.sh("echo new > a.txt")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for step, call in (("restore.Restorer.restore", sandbox.discard), ("detect.Detector.detect", sandbox.changes)):
        with monkeypatch.context() as patch, pytest.raises(SandboxError):
            patch.setattr(f"warmcell.changes.{step}", fail)
            call()


def test_nothing_is_listed_before_the_first_command(open_sandbox, directory: Path, monkeypatch) -> None:
    """The start does not depend on the size of the directory."""
    if is_root():
        pytest.skip("root has no overlays")
    listed = []
    inodes = {directory.stat().st_ino, (directory / "src").stat().st_ino}
    scandir = os.scandir

    def watch(path="."):
        if (os.fstat(path) if isinstance(path, int) else os.stat(path)).st_ino in inodes:
            listed.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", watch)
    assert open_sandbox().sh("cat a.txt").ok
    assert not listed


@pytest.mark.parametrize(
    "program",
    [
        "open('big', 'wb').write(bytes(64 << 20))",
        "import os, time\nfiles = []\nfor number in range(8):\n"
        "    files.append(open('big', 'wb', buffering=0)); os.unlink('big'); files[-1].write(bytes(8 << 20))\n"
        "time.sleep(60)",
    ],
    ids=["a file", "unlinked files"],
)
def test_the_disk_limit_holds(open_sandbox, program: str) -> None:
    sandbox = open_sandbox(limits=Limits(disk_mb=16))
    result = sandbox.run(program)
    assert not result.ok


def test_the_disk_limit_counts_all_runs(open_sandbox) -> None:
    if is_root():
        pytest.skip("root has no overlays")
    sandbox = open_sandbox(limits=Limits(disk_mb=16))
    for number in range(2):
        assert sandbox.run(f"open('f{number}', 'wb').write(bytes(7 << 20))").ok
    assert not sandbox.run("open('f2', 'wb').write(bytes(7 << 20)); import time; time.sleep(30)").ok
    assert sandbox.sh("rm f0 f1 f2; ls").stdout == "a.txt\nsrc\n"  # a full layer can be emptied
    assert sandbox.run("open('f3', 'wb').write(bytes(7 << 20))").ok


def test_wrong_settings_are_refused(directory: Path) -> None:
    with pytest.raises(InvalidRequest, match="needs a directory"):
        Sandbox(changes="ask")
    with pytest.raises(InvalidRequest, match="'ask'"):
        Sandbox(work_dir=directory, changes="yes")
    with Sandbox(work_dir=directory) as plain, pytest.raises(InvalidRequest, match="not kept apart"):
        plain.changes()
