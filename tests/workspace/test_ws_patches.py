"""Patches: what applies, and WS-13, what must not."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import require

from warmcell.core.errors import PathTraversal, PolicyViolation, SandboxError
from warmcell.workspace.diff import FsChange
from warmcell.workspace.errors import LimitExceeded, PatchRejected, WorkspaceError
from warmcell.workspace.patch import apply as patching
from warmcell.workspace.patch.apply import parse_patch
from warmcell.workspace.patch.hunks import apply_hunks
from warmcell.workspace.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    (tmp_path / "ws").mkdir()
    made = Workspace(tmp_path / "ws")
    made.write_file("a.txt", "one\ntwo\nthree\n")
    yield made
    made.close()


def names(workspace: Workspace) -> list[str]:
    return sorted(str(path.relative_to(workspace.host_path)) for path in Path(workspace.host_path).rglob("*"))


CHANGE = "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n"


def test_a_change(workspace: Workspace) -> None:
    assert workspace.apply_patch(CHANGE) == [FsChange("a.txt", "modified", 14)]
    assert workspace.read_text("a.txt") == "one\nTWO\nthree\n"


def test_names_without_prefix_and_with_a_date(workspace: Workspace) -> None:
    workspace.apply_patch(CHANGE.replace("a/a.txt", "a.txt\t2024-01-01 00:00").replace("b/a.txt", "a.txt\t2024-01-02"))
    assert workspace.read_text("a.txt") == "one\nTWO\nthree\n"


def test_a_new_file_a_deleted_one_and_a_move_in_one_patch(workspace: Workspace) -> None:
    workspace.write_file("old.txt", "x\n")
    workspace.write_file("gone.txt", "bye\n")
    changes = workspace.apply_patch(
        "diff --git a/d/new.sh b/d/new.sh\nnew file mode 100755\nindex 0000000..1\n--- /dev/null\n+++ b/d/new.sh\n"
        "@@ -0,0 +1 @@\n+#!/bin/sh\n"
        "diff --git a/gone.txt b/gone.txt\ndeleted file mode 100644\n--- a/gone.txt\n+++ /dev/null\n"
        "@@ -1 +0,0 @@\n-bye\n"
        "diff --git a/old.txt b/moved.txt\nsimilarity index 100%\nrename from old.txt\nrename to moved.txt\n"
        "diff --git a/empty b/empty\nnew file mode 100644\nindex 0000000..e69de29\n"
    )
    assert [(change.path, change.kind) for change in changes] == [
        ("d/new.sh", "created"),
        ("empty", "created"),
        ("gone.txt", "deleted"),
        ("moved.txt", "created"),
        ("old.txt", "deleted"),
    ]
    assert names(workspace) == ["a.txt", "d", "d/new.sh", "empty", "moved.txt"]
    assert workspace.stat("d/new.sh").mode == 0o755


def test_a_hunk_that_moved_is_found_and_one_that_does_not_match_is_not(workspace: Workspace) -> None:
    workspace.write_file("a.txt", "0\n" * 40 + "one\ntwo\nthree\n")
    workspace.apply_patch(CHANGE)
    assert workspace.read_text("a.txt").endswith("one\nTWO\nthree\n")
    with pytest.raises(PatchRejected, match="but then line 42 is 'TWO', not 'two'"):
        workspace.apply_patch(CHANGE)


def test_the_last_line_may_have_no_end(workspace: Workspace) -> None:
    workspace.write_file("b", "x\ny")
    workspace.apply_patch("--- a/b\n+++ b/b\n@@ -1,2 +1,2 @@\n x\n-y\n\\ No newline at end of file\n+z\n")
    assert workspace.read_file("b") == b"x\nz\n"
    workspace.apply_patch("--- a/b\n+++ b/b\n@@ -1,2 +1,2 @@\n x\n-z\n+w\n\\ No newline at end of file\n")
    assert workspace.read_file("b") == b"x\nw"


def test_bytes_that_are_no_text_and_carriage_returns_survive(workspace: Workspace) -> None:
    workspace.write_file("b", b"\xff\r\nold\r\n")
    workspace.apply_patch(b"--- a/b\n+++ b/b\n@@ -1,2 +1,2 @@\n \xff\r\n-old\r\n+new\xfe\r\n")
    assert workspace.read_file("b") == b"\xff\r\nnew\xfe\r\n"


def test_what_git_writes_applies(workspace: Workspace, tmp_path: Path) -> None:
    require(shutil.which("git"), "git is not installed")
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "a.txt").write_text("one\ntwo\nthree\n")
    (repository / "ü b.txt").write_text("odd\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(repository)]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *arguments], check=True)
    (repository / "a.txt").write_text("one\n2\nthree\nfour\n")
    (repository / "ü b.txt").unlink()
    (repository / "c").mkdir()
    (repository / "c/new").write_text("new")
    (repository / "empty").touch()
    subprocess.run([*git, "add", "-A"], check=True)
    patch = subprocess.run([*git, "diff", "--cached"], check=True, capture_output=True).stdout
    workspace.write_file("ü b.txt", "odd\n")
    workspace.apply_patch(patch)
    assert names(workspace) == ["a.txt", "c", "c/new", "empty"]
    assert workspace.read_text("a.txt") == "one\n2\nthree\nfour\n"
    assert workspace.read_file("c/new") == b"new"


def new_file(name: str, mode: str = "100644", content: str = "+x") -> str:
    return f"diff --git a/x b/x\nnew file mode {mode}\n--- /dev/null\n+++ {name}\n@@ -0,0 +1 @@\n{content}\n"


BAD = {
    "up": new_file("b/../../evil"),
    "up without prefix": "--- /dev/null\n+++ ../evil\n@@ -0,0 +1 @@\n+x\n",
    "absolute": new_file("/tmp/warmcell-evil"),
    "absolute after prefix": new_file("b//tmp/warmcell-evil"),
    "home": new_file("b/~/evil"),
    "backslash": new_file("b/..\\evil"),
    "quoted up": new_file('"b/\\056\\056/evil"'),
    "quoted NUL": new_file('"b/x\\000y"'),
    "rename out": "diff --git a/a.txt b/../evil\nsimilarity index 100%\nrename from a.txt\nrename to ../evil\n",
    "rename in": "diff --git a/x b/x\nrename from ../secret\nrename to x\n",
    "copy out": "diff --git a/a.txt b/x\ncopy from a.txt\ncopy to /tmp/warmcell-evil\n",
    "copy in": "diff --git a/x b/x\ncopy from /etc/hostname\ncopy to x\n",
    "rename names others": "rename from a.txt\nrename to b\n--- a/a.txt\n+++ b/c\n@@ -1 +1 @@\n-one\n+1\n",
    "symlink": new_file("b/link", "120000", "+/tmp"),
    "symlink then write through": new_file("b/link", "120000", "+/tmp") + new_file("b/link/evil"),
    "submodule": new_file("b/sub", "160000", "+Subproject commit 0"),
    "setuid mode": new_file("b/su", "104755"),
    "mode change to link": "diff --git a/a.txt b/a.txt\nold mode 100644\nnew mode 120000\n",
    "ed script": "1,2c\nhello\n.\n!touch warmcell-evil\nw\n",
    "ed script with header": "--- a/a.txt\n+++ b/a.txt\n1c\n!touch warmcell-evil\n.\n",
    "ed script before": "!touch warmcell-evil\n" + CHANGE,
    "ed script after": CHANGE + "!touch warmcell-evil\n",
    "context diff": "*** a.txt\n--- a.txt\n***************\n*** 1 ****\n! one\n--- 1 ----\n! 1\n",
    "carriage returns in headers": CHANGE.replace("\n", "\r\n"),
    "carriage return in a name": "--- a/a.txt\r\n+++ b/a.txt\r\n@@ -1 +1 @@\n-one\n+1\n",
    "carriage return in a new name": new_file("b/x\r"),
    "binary": "diff --git a/a.txt b/a.txt\nindex 1..2 100644\nGIT binary patch\nliteral 1\nIcmZQz\n\n",
    "two names": "--- a/a.txt\n+++ b/b.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n",
    "already exists": new_file("b/a.txt"),
    "missing": "--- a/none\n+++ b/none\n@@ -1 +1 @@\n-x\n+y\n",
    "delete a part": "--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n",
    "the same file twice": CHANGE + CHANGE,
    "nothing changes": "--- a/a.txt\n+++ b/a.txt\n@@ -1,1 +1,1 @@\n one\n",
    "nothing changes and huge counts": "--- a/a.txt\n+++ b/a.txt\n@@ -1,999999999 +1,999999999 @@\n one\n",
    "a merge": "--- a/a.txt\n+++ b/a.txt\n@@@ -1,1 -1,1 +1,1 @@@\n- one\n++1\n",
    "no hunks": "--- a/a.txt\n+++ b/a.txt\n",
    "hunk without file": "@@ -1 +1 @@\n-one\n+1\n",
    "empty": "",
    "prose": "please change two to TWO",
    "nothing to nothing": "--- /dev/null\n+++ /dev/null\n@@ -0,0 +1 @@\n+x\n",
    "surrogate": new_file("b/\udcff"),
}


@pytest.mark.attack("WS-13")
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "after a good one"])
@pytest.mark.parametrize("patch", BAD.values(), ids=BAD.keys())
def test_a_bad_patch_changes_nothing(workspace: Workspace, tmp_path: Path, patch: str, is_alone: bool) -> None:
    workspace.write_file("good", "1\n")
    good = "--- a/good\n+++ b/good\n@@ -1 +1 @@\n-1\n+2\n"
    if not is_alone and patch.strip():
        patch = good + patch
    if is_alone or patch.strip():
        with pytest.raises(PatchRejected):
            workspace.apply_patch(patch)
    assert names(workspace) == ["a.txt", "good"]
    assert workspace.read_text("a.txt") == "one\ntwo\nthree\n"
    assert workspace.read_text("good") == "1\n"
    assert os.listdir(tmp_path) == ["ws"]
    assert not os.path.exists("/tmp/warmcell-evil")


@pytest.mark.attack("WS-13")
def test_a_patch_does_not_go_through_links_or_special_files(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").write_text("one\ntwo\nthree\n")
    os.symlink(tmp_path / "out", f"{workspace.host_path}/dir")
    os.symlink(tmp_path / "out/file", f"{workspace.host_path}/leaf")
    os.mkfifo(f"{workspace.host_path}/pipe")
    for name in ("dir/file", "leaf", "pipe"):
        with pytest.raises((PathTraversal, PatchRejected)):
            workspace.apply_patch(CHANGE.replace("a.txt", name))
    for name in ("dir/new", "leaf"):
        with pytest.raises((PathTraversal, PatchRejected)):
            workspace.apply_patch(new_file(f"b/{name}"))
    assert os.listdir(tmp_path / "out") == ["file"]
    assert (tmp_path / "out/file").read_text() == "one\ntwo\nthree\n"


@pytest.mark.attack("WS-13")
def test_a_write_that_fails_half_way_is_undone(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = patching.replace_file, []

    def fail_on_second(*args: object, **kwargs: object) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise WorkspaceError("d/e/new", "could not be used: No space left on device")
        real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(patching, "replace_file", fail_on_second)
    with pytest.raises(WorkspaceError):
        workspace.apply_patch(CHANGE + "--- /dev/null\n+++ b/d/e/new\n@@ -0,0 +1 @@\n+x\n")
    assert workspace.read_text("a.txt") == "one\ntwo\nthree\n"
    assert names(workspace) == ["a.txt"]


@pytest.mark.attack("WS-13")
def test_a_refused_patch_does_not_replace_a_protected_file(tmp_path: Path) -> None:
    """A file renamed over it would end the mount that makes it read-only in a live cage."""
    config = tmp_path / "ws/.git/config"
    config.parent.mkdir(parents=True)
    config.write_text("one\ntwo\nthree\n")
    before = config.stat()
    workspace = Workspace(tmp_path / "ws", protected=lambda directory: [(".git", "config")])
    try:
        with pytest.raises(PolicyViolation, match="read-only"):
            workspace.apply_patch(CHANGE.replace("a.txt", ".git/config"))
    finally:
        workspace.close()
    assert (config.stat().st_ino, config.stat().st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


@pytest.mark.attack("WS-13")
def test_a_patch_that_the_quota_refuses_refunds_nothing(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws", disk_mb=1)
    try:
        workspace.write_file("a.txt", "one\ntwo\nthree\n")
        workspace.write_file("full", bytes(900 << 10))
        for _ in range(3):
            with pytest.raises(LimitExceeded):
                workspace.apply_patch(CHANGE.replace("+TWO", "+" + "T" * 200_000))
    finally:
        workspace.close()


@pytest.mark.attack("WS-13")
def test_a_patch_that_would_search_for_ever_is_refused(workspace: Workspace) -> None:
    workspace.write_file("big", "x\n" * 100_000)
    hunk = "@@ -1,20001 +1,20001 @@\n" + " x\n" * 20_000 + "-y\n+z\n"
    started = time.process_time()
    with pytest.raises(PatchRejected, match="too long"):
        workspace.apply_patch("--- a/big\n+++ b/big\n" + hunk)
    assert time.process_time() - started < 20


_LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "-\n", "+ x\n"]), max_size=12)


@given(_LINES, _LINES)
def test_what_a_diff_tool_writes_applies_to_what_it_was_made_from(old: list[str], new: list[str]) -> None:
    import difflib

    patch = "".join(difflib.unified_diff(old, new, "a/f", "b/f"))
    if old == new:
        return
    (parsed,) = parse_patch(patch)
    assert apply_hunks("".join(old), parsed.hunks) == ("".join(new), [])


@given(
    st.lists(st.sampled_from([*BAD.values(), CHANGE, "@@ -1 +1 @@\n", "-x\n", "+x\n", " \n", "\\ No\n"]), max_size=4)
)
def test_any_text_is_parsed_or_rejected(pieces: list[str]) -> None:
    try:
        patches = parse_patch("".join(pieces))
    except PatchRejected:
        return
    for patch in patches:
        assert all(part != ".." for part in patch.target)


@given(st.text(max_size=200))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        parse_patch(text)
    except SandboxError as error:
        assert isinstance(error, PatchRejected)
