"""Guests that prepare something for the commit, and a host that changes meanwhile. Asserted from outside."""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.changes.tree import read_tree

from warmcell import Limits, Sandbox
from warmcell.changes import apply, text
from warmcell.changes.detect import Lower
from warmcell.changes.layer import ChangeLayer

pytestmark = [pytest.mark.needs("user namespaces"), pytest.mark.claim("WC-FS-8")]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file beside the directory that must stay as it is."""
    canary = tmp_path / "outside"
    canary.mkdir()
    (canary / "file").write_text("untouched")
    return canary


@pytest.mark.parametrize(
    "target",
    [
        "/etc/passwd",
        "../outside",
        "src/../../outside",
        "src/./../../outside/file",
        "hop/../outside",
        "hop/file",
        "/proc/self/root",
        "..",
    ],
)
def test_links_that_lead_out_are_not_committed(sandbox: Sandbox, directory: Path, outside: Path, target: str) -> None:
    (directory / "hop").symlink_to(outside)  # the host's own link, made before the guest's first look
    sandbox.exec("ln", ["-s", target, "leak"])
    sandbox.exec("ln", ["-s", "../a.txt", "src/fine"])
    report = sandbox.commit()
    assert "src/fine" in report.committed
    assert "leak" in report.skipped
    assert not os.path.lexists(directory / "leak")
    assert read_tree(outside) == {"file": "untouched"}


def test_special_files_and_set_id_bits_stay_behind(sandbox: Sandbox, directory: Path) -> None:
    program = """
import os, socket
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
try: os.mknod("device", 0o20666, os.makedev(1, 3))
except OSError: pass
open("program", "w").write("#!/bin/sh")
try: os.chmod("program", 0o6755)
except OSError: os.chmod("program", 0o755)
os.mkdir("closed"); open("closed/secret", "w").close(); os.chmod("closed", 0)
open("unreadable", "w").write("x"); os.chmod("unreadable", 0)
"""
    sandbox.run(program)
    report = sandbox.commit()
    assert "program" in report.committed
    assert {conflict.path for conflict in report.conflicts} >= {"fifo", "socket"}
    names = set(os.listdir(directory))
    assert names <= {"a.txt", "src", "program", "closed", "unreadable"}
    for path in directory.rglob("*"):
        mode = path.lstat().st_mode
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        assert not mode & (stat.S_ISUID | stat.S_ISGID)
    os.path.lexists(directory / "closed") and os.chmod(directory / "closed", 0o700)


def test_names_that_are_not_utf_8(sandbox: Sandbox, directory: Path) -> None:
    sandbox.run(r"""
open(b"bad-\xff\xfe", "w").write("1"); open("line\nbreak", "w").write("2"); open("\x1b[31mred", "w").write("3")
open("-rf", "w").write("4"); open("Ünïcode", "w").write("5"); open("CASE", "w").write("6"); open("case", "w").write("7")
""")
    names = {change.path for change in sandbox.changes()}
    assert os.fsdecode(b"bad-\xff\xfe") in names
    patch = sandbox.changes_patch()
    assert "\x1b" not in patch
    assert len(sandbox.commit([*names]).committed) == 7
    found = {os.fsencode(name): (directory / name).read_text() for name in os.listdir(directory) if name != "src"}
    assert found[b"bad-\xff\xfe"] == "1"
    assert found[b"CASE"] == "6"
    assert found[b"case"] == "7"


def test_hard_links_of_the_host_are_not_written_through(sandbox: Sandbox, directory: Path, outside: Path) -> None:
    os.link(outside / "file", directory / "linked")
    os.utime(directory / "linked")
    sandbox.run("""
import os
os.link("a.txt", "twin"); open("twin", "a").write("more"); open("linked", "w").write("changed")
""")
    sandbox.commit()
    assert (outside / "file").read_text() == "untouched"
    if (directory / "twin").exists():
        assert (directory / "twin").stat().st_nlink == 1


def test_large_sparse_files_stay_sparse(sandbox: Sandbox, directory: Path) -> None:
    sandbox.run("""
import os
with open("sparse", "wb") as file:
    file.truncate(1 << 20); file.seek(1 << 19); file.write(b"data")
os.truncate("sparse", 200 << 20)
""")
    assert sandbox.commit().committed == ("sparse",)
    made = (directory / "sparse").stat()
    assert made.st_size == 200 << 20
    assert made.st_blocks * 512 < 1 << 20
    with open(directory / "sparse", "rb") as file:
        file.seek(1 << 19)
        assert file.read(4) == b"data"
    assert sandbox.changes() == []


def test_a_directory_replaced_by_a_link_before_the_commit(sandbox: Sandbox, directory: Path, outside: Path) -> None:
    sandbox.sh("echo evil > src/file; echo evil > src/b.py; rm src/c.py")
    assert len(sandbox.changes()) == 3
    os.rename(directory / "src", directory / "moved")
    os.symlink(outside, directory / "src")
    report = sandbox.commit()
    assert not report.committed
    assert {conflict.path for conflict in report.conflicts} >= {"src/b.py", "src/file"}  # c.py is not there any more
    assert read_tree(outside) == {"file": "untouched"}
    assert (directory / "moved/b.py").read_text() == "print('b')\n"


def test_a_guest_that_swaps_directories_while_it_is_committed(sandbox: Sandbox, directory: Path, outside: Path) -> None:
    """The guest replaces its own directories by links as fast as it can, on its side of the overlay."""
    process = sandbox.spawn(
        [
            "python3",
            "-c",
            f"""
import os
os.makedirs("d", exist_ok=True)
while True:
    try:
        open("d/file", "w").write("x" * 100)
        os.rename("d", "real"); os.symlink({str(outside)!r}, "d")
        os.unlink("d"); os.rename("real", "d")
    except OSError: pass
""",
        ]
    )
    for _ in range(10):
        sandbox.commit(allow_flagged=())
    process.kill()
    assert read_tree(outside) == {"file": "untouched"}
    assert not (directory / "d").is_symlink()
    assert not (directory / "real").is_symlink()


def test_a_type_that_changed(sandbox: Sandbox, directory: Path) -> None:
    sandbox.sh("rm a.txt; mkdir a.txt; echo in > a.txt/file; rm -r src; echo file > src")
    report = sandbox.commit()
    assert report.conflicts == ()
    assert read_tree(directory) == {"a.txt/file": "in\n", "src": "file\n"}
    assert sandbox.changes() == []


def test_a_deleted_directory_in_which_the_host_worked(sandbox: Sandbox, directory: Path) -> None:
    sandbox.sh("rm -r src")
    (directory / "src/b.py").write_text("print('new')\n")
    assert [conflict.path for conflict in sandbox.commit().conflicts] == ["src"]
    assert (directory / "src/b.py").read_text() == "print('new')\n"
    assert (directory / "src/c.py").exists()


def test_a_deleted_directory_into_which_the_host_moved_another(open_sandbox, directory: Path) -> None:
    """A move changes the times of the directory that is moved, and of nothing in it."""
    (directory / "drafts").mkdir()
    (directory / "drafts/notes").write_text("the host's\n")
    (directory / "old/deep").mkdir(parents=True)
    sandbox = open_sandbox()
    sandbox.sh("echo x > old/deep/file")
    sandbox.commit()
    sandbox.sh("rm -r src old")
    os.rename(directory / "drafts", directory / "src/drafts")
    assert [conflict.path for conflict in sandbox.commit().conflicts] == ["src"]
    assert (directory / "src/drafts/notes").read_text() == "the host's\n"
    assert not (directory / "old").exists()  # only a commit changed the times in it


def test_a_host_that_writes_all_the_time_loses_nothing(
    sandbox: Sandbox, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line that the host appends is there at the end, whatever was committed in between.

    The host replaces its file at any time, but does not read it while a commit exchanges it: what it read then would
    lack the lines of the version that is put back, if it replaces that version, too.
    """
    log = directory / "a.txt"
    sandbox.sh("sed -i '1s/^/guest\\n/' a.txt")
    stop, exchanging = threading.Event(), threading.Lock()
    written = list[str]()
    replace = apply._replace

    def replace_unread(*arguments: Any) -> None:
        with exchanging:
            replace(*arguments)

    def append() -> None:
        while not stop.is_set():
            line = f"host {len(written)}\n"
            replaced = log.with_suffix(".new")
            with exchanging:
                before = os.stat(log)
                replaced.write_text(log.read_text() + line)
                after = os.stat(log)
            if (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns):
                written.append(line)
                os.rename(replaced, log)

    monkeypatch.setattr(apply, "_replace", replace_unread)
    writer = threading.Thread(target=append)
    writer.start()
    try:
        reports = [sandbox.commit() for _ in range(20)]
    finally:
        stop.set()
        writer.join()
    assert all(report.skipped == () for report in reports)
    lines = log.read_text().splitlines(keepends=True)
    assert [line for line in lines if line.startswith("host")] == written
    assert not [name for name in os.listdir(directory) if name.startswith(".warmcell")]


@pytest.mark.parametrize(
    "path",
    [
        ".git/hooks/post-commit",
        ".GIT/Config",
        ".gi\u200ct/config",
        "vendor/lib/.git/config",
        ".envrc",
        ".vscode/tasks.json",
        ".github/workflows/ci.yml",
        ".gitlab-ci.yml",
        "pkg/conftest.py",
        "package.json",
        "sub/Makefile",
        "bare/config",
        ".hg/hgrc",
        "mypy.ini",
        ".pdbrc",
        "crate/Cargo.toml",
    ],
)
def test_what_the_host_would_execute_is_flagged(open_sandbox, directory: Path, path: str) -> None:
    sandbox = open_sandbox()
    sandbox.write_file("bare/HEAD", "ref: refs/heads/main\n")
    sandbox.write_file(path, "x")
    report = sandbox.commit()
    assert path in report.skipped
    assert not (directory / path).exists()
    assert path in sandbox.commit(allow_flagged=[path]).committed


def test_a_link_cannot_stand_for_a_flagged_directory(open_sandbox, directory: Path) -> None:
    sandbox = open_sandbox()
    sandbox.sh("mkdir -p ci/workflows; echo x > ci/workflows/run.yml; ln -s ci .github; ln -s ci .git")
    assert set(sandbox.commit().skipped) == {".github", ".git"}
    assert not os.path.lexists(directory / ".github")


def test_removing_a_socket_of_the_host_is_a_change_like_others(open_sandbox, directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{opened}/s")  # the directory's own path may be longer than a socket's may be
        os.close(opened)
        sandbox = open_sandbox()
        sandbox.sh("rm s; echo x > t")
        report = sandbox.commit()
    assert set(report.committed) == {"s", "t"} and os.listdir(directory).count("s") == 0


def test_a_sparse_file_of_4_gb(open_sandbox, directory: Path) -> None:
    """Neither listing, committing nor comparing it reads or writes its holes."""
    sandbox = open_sandbox(limits=Limits(disk_mb=5000))
    assert sandbox.run("open('huge', 'wb').truncate(4 << 30); import os; os.link('huge', 'second')").ok
    assert set(sandbox.commit().committed) == {"huge", "second"}
    made = (directory / "huge").stat()
    assert (made.st_size, made.st_nlink) == (4 << 30, 1)
    assert made.st_blocks * 512 < 1 << 20
    assert sandbox.changes() == []


def test_the_halves_of_a_repository_are_not_committed_one_after_the_other(sandbox: Sandbox, directory: Path) -> None:
    """A directory of any name with HEAD, objects and refs is a repository, whose configuration names programs."""
    sandbox.sh("mkdir -p x/objects x/refs; touch x/objects/a x/refs/a; echo '[core]' > x/config")
    assert "x/config" in sandbox.commit().committed
    sandbox.sh("echo 'ref: refs/heads/main' > x/HEAD; echo text > HEAD")
    report = sandbox.commit()
    assert (report.committed, report.skipped) == (("HEAD",), ("x/HEAD",))
    assert not (directory / "x/HEAD").exists()


def test_a_link_is_committed_as_it_was_checked(
    sandbox: Sandbox, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guest that still runs replaces its link between the check and the commit."""
    sandbox.sh("ln -s a.txt link")
    write = apply.write_journal

    def replace_link(place: str, draft: apply.Journal) -> None:
        write(place, draft)
        upper = Path(place, "upper/link")
        upper.unlink()
        upper.symlink_to("/etc/passwd")

    monkeypatch.setattr(apply, "write_journal", replace_link)
    assert sandbox.commit().committed == ("link",)
    assert os.readlink(directory / "link") == "a.txt"


def test_entries_that_come_and_go_while_changes_are_listed(
    sandbox: Sandbox, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.sh("ln -s a.txt link; echo new > file")
    stat = Lower.stat

    def remove_link(self: Lower, parts: tuple[str, ...]) -> os.stat_result | None:
        for upper in directory.parent.glob("state/warmcell/changes/*/upper"):
            (upper / "link").unlink(missing_ok=True)
        return stat(self, parts)

    monkeypatch.setattr(Lower, "stat", remove_link)
    found = sandbox.changes()
    assert [change.path for change in found if change.kind == "added"] == ["file"], found
    assert "file" in sandbox.commit().committed


@pytest.mark.attack("S2-35")
def test_many_new_files_of_many_lines_cost_no_search(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took 0.3 s: 700 bytes of a guest."""
    sandbox.run("for n in range(40): open(f'new{n}', 'w').write('\\n' * 700)")
    spent: list[int] = []
    monkeypatch.setattr(text.Effort, "spend", lambda self, steps: not spent.append(steps))
    patch = sandbox.changes_patch()
    assert patch.count("+++ b/new") == 40 and patch.count("\n+\n") + patch.count("@@\n+") > 40
    assert sum(spent) < 1000


@pytest.mark.attack("S2-35")
def test_all_texts_of_a_patch_share_their_search(monkeypatch: pytest.MonkeyPatch) -> None:
    before = b"".join(b"%d\n" % number for number in range(100))
    after = b"".join(b"%d\n" % (number if number % 9 else -number - 1) for number in range(100))
    monkeypatch.setattr(text, "_MOST_STEPS", 500)
    effort = text.Effort()
    first, second = (text.write_hunks(before, after, effort) for _ in range(2))
    assert b" 46\n" in first and b" 46\n" not in second
    assert second.count(b"\n-") == second.count(b"\n+") == 100


@pytest.mark.attack("S3-09")
def test_holes_do_not_make_a_patch_large(sandbox: Sandbox) -> None:
    sandbox.run("for n in range(80):\n with open(f'f{n:02}', 'w') as f: f.write('x\\n' * 4000); f.truncate(2**20)")
    patch = sandbox.changes_patch()
    assert len(patch) < 66 << 20
    assert "Binary files a/f79 and b/f79 differ" in patch and "+++ b/f00" in patch


@pytest.mark.attack("S2-35")
def test_naming_every_change_is_linear(tmp_path: Path) -> None:
    """4,000 files of a guest took 40 s."""
    (tmp_path / "project").mkdir()
    layer = ChangeLayer(str(tmp_path / "project"), "/work", may_mount=False)
    try:
        few, many = (_count_calls(layer, names) for names in (100, 800))
    finally:
        layer.close()
    assert many < 16 * few


def _count_calls(layer: ChangeLayer, files: int) -> int:
    for number in range(files):
        Path(layer.copy_path, f"{number}").write_text("x")
    paths, calls = [change.path for change in layer.changes()], 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        layer.commit(paths, paths, dry_run=True, merged=layer.lower)
    finally:
        sys.setprofile(None)
    return calls
