"""Patches as models write them: wrong counts, missing numbers, the form of coding agents; and what they are told."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.core.errors import PathTraversal
from warmcell.workspace.errors import PatchRejected
from warmcell.workspace.patch.apply import parse_patch
from warmcell.workspace.workspace import Workspace

TEXT = "import os\n\n\nclass A:\n    def f(self):\n        return 1\n\n\nclass B:\n    def f(self):\n        return 1\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    (tmp_path / "ws").mkdir()
    made = Workspace(tmp_path / "ws")
    made.write_file("m.py", TEXT)
    made.write_file("n.txt", "one\ntwo\nthree\n")
    yield made
    made.close()


def agent_patch(*lines: str) -> str:
    return "\n".join(("*** Begin Patch", *lines, "*** End Patch"))


def make_diff(body: str, name: str = "n.txt") -> str:
    return f"--- a/{name}\n+++ b/{name}\n{body}"


TWO = "one\nTWO\nthree\n"
COUNTS = {
    "too high": make_diff("@@ -1,9 +1,7 @@\n one\n-two\n+TWO\n three\n"),
    "too low": make_diff("@@ -1,1 +1,1 @@\n one\n-two\n+TWO\n three\n"),
    "huge": make_diff("@@ -1,999999999 +1,999999999 @@\n one\n-two\n+TWO\n three\n"),
    "none": make_diff("@@\n one\n-two\n+TWO\n three\n"),
    "a word": make_diff("@@ def f(): @@\n one\n-two\n+TWO\n three\n"),
    "malformed": make_diff("@@ -1,3 @@\n one\n-two\n+TWO\n three\n"),
    "wrong line": make_diff("@@ -70,3 +70,3 @@\n one\n-two\n+TWO\n three\n"),
    "no last line end": make_diff("@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three"),
    "empty lines at the end": make_diff("@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n three\n\n\n"),
    "a fence": f"```diff\n{make_diff('@@ -1,3 +1,3 @@')}\n one\n-two\n+TWO\n three\n```\n",
    "blanks at the ends of lines": make_diff("@@ -1,3 +1,3 @@\n one  \n-two\t\n+TWO\n three \n"),
}


@pytest.mark.parametrize("patch", COUNTS.values(), ids=COUNTS.keys())
def test_a_header_that_is_wrong_does_no_harm(workspace: Workspace, patch: str) -> None:
    workspace.apply_patch(patch)
    assert workspace.read_text("n.txt") == TWO


def test_wrong_counts_do_not_swallow_the_next_file_or_hunk(workspace: Workspace) -> None:
    first = make_diff("@@ -1,4 +1,4 @@\n-one\n+1\n two\n\n@@ -3,4 +3,5 @@\n-three\n+3\n")
    workspace.apply_patch(first + make_diff("@@ -1,9 +1,9 @@\n-import os\n+import sys\n", "m.py"))
    assert workspace.read_text("n.txt") == "1\ntwo\n3\n"
    assert workspace.read_text("m.py").startswith("import sys\n")


def test_lines_that_look_like_headers_are_content_where_the_counts_say_so(workspace: Workspace) -> None:
    workspace.write_file("q.sql", "-- a note\nselect 1\n")
    workspace.apply_patch(make_diff("@@ -1,2 +1,2 @@\n--- a note\n+++ b note\n select 1\n", "q.sql"))
    assert workspace.read_text("q.sql") == "++ b note\nselect 1\n"


def test_carriage_returns_of_the_file_are_kept_when_the_patch_has_none(workspace: Workspace) -> None:
    workspace.write_file("n.txt", b"one\r\ntwo\r\nthree\r\n")
    workspace.apply_patch(make_diff("@@ -1,3 +1,4 @@\n one\n-two\n+TWO\n+2.5\n three\n"))
    assert workspace.read_file("n.txt") == b"one\r\nTWO\r\n2.5\r\nthree\r\n"
    workspace.apply_patch(make_diff("@@ -1,4 +1,4 @@\n one\r\n-TWO\r\n+two\n 2.5\r\n three\r\n"))
    assert workspace.read_file("n.txt") == b"one\r\ntwo\n2.5\r\nthree\r\n"


def test_the_form_of_coding_agents(workspace: Workspace) -> None:
    workspace.write_file("gone", "x\n")
    changes = workspace.apply_patch(
        agent_patch(
            "*** Add File: d/new.py",
            "+print(1)",
            "+",
            "*** Delete File: gone",
            "*** Update File: m.py",
            "*** Move to: d/m.py",
            "@@ class B:",
            "     def f(self):",
            "-        return 1",
            "+        return 2",
            "",
            "*** Update File: n.txt",
            " one",
            "-two",
            "+TWO",
            "@@",
            " three",
            "+four",
            "*** End of File",
        )
    )
    assert [(change.path, change.kind) for change in changes] == [
        ("d/m.py", "created"),
        ("d/new.py", "created"),
        ("gone", "deleted"),
        ("m.py", "deleted"),
        ("n.txt", "modified"),
    ]
    assert workspace.read_text("d/m.py") == TEXT[: TEXT.rindex("1")] + "2\n"
    assert workspace.read_text("d/new.py") == "print(1)\n\n"
    assert workspace.read_text("n.txt") == TWO + "four\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("@@ class B:", "+    x = 1"), TEXT.replace("class B:\n", "class B:\n    x = 1\n")),
        (("@@ class B:", "@@ def f(self):", "+        y()"), TEXT[:-17] + "        y()\n" + TEXT[-17:]),
        (("+z = 1",), TEXT + "z = 1\n"),
        (("-        return 1", "+        return 3"), TEXT.replace("return 1", "return 3", 1)),
        (("-        return 1", "+        return 3", "*** End of File"), TEXT[:-2] + "3\n"),
        (("@@ -9,3 +9,3 @@", "     def f(self):", "-        return 1", "+        return 3"), TEXT[:-2] + "3\n"),
    ],
    ids=[
        "after an anchor",
        "after two anchors",
        "at the end",
        "the first of equals",
        "the last of equals",
        "by number",
    ],
)
def test_where_a_hunk_goes(workspace: Workspace, lines: tuple[str, ...], expected: str) -> None:
    workspace.apply_patch(agent_patch("*** Update File: m.py", *lines))
    assert workspace.read_text("m.py") == expected


def test_all_that_does_not_fit_is_told_and_nothing_is_changed(workspace: Workspace) -> None:
    with pytest.raises(PatchRejected) as caught:
        workspace.apply_patch(
            agent_patch(
                "*** Update File: n.txt",
                "@@",
                "-one",
                "+1",
                "@@ nowhere",
                "-two",
                "+2",
                "@@",
                " two",
                "-four",
                "+4",
                "@@",
                " three",
                "-four",
                "*** Update File: none",
                "-x",
                "*** Add File: m.py",
                "+x",
                "*** Delete File: neither",
            )
        )
    assert [(misfit.path, misfit.hunk) for misfit in caught.value.misfits] == [
        ("n.txt", 2),
        ("n.txt", 3),
        ("n.txt", 4),
        ("none", None),
        ("m.py", None),
        ("neither", None),
    ]
    told = str(caught.value)
    for words in (
        "the '@@' line 'nowhere' was not found after line 1",
        "it matches from line 2, but then line 3 is 'three', not 'four'",
        "but then the file ends, not 'four'",
        "'none': does not exist",
        "'m.py': already exists and would be created",
    ):
        assert words in told
    assert "/ws" not in told
    assert workspace.read_text("n.txt") == "one\ntwo\nthree\n"
    assert workspace.read_text("m.py") == TEXT


BAD = {
    "cut off": "*** Begin Patch\n*** Add File: x\n+1\n",
    "text behind": agent_patch("*** Add File: x", "+1") + "\n!touch warmcell-evil\n",
    "up": agent_patch("*** Add File: ../evil", "+x"),
    "absolute": agent_patch("*** Add File: /tmp/warmcell-evil", "+x"),
    "home": agent_patch("*** Add File: ~/evil", "+x"),
    "no name": agent_patch("*** Add File: ", "+x"),
    "move out": agent_patch("*** Update File: n.txt", "*** Move to: ../evil", "-one", "+1"),
    "move onto another": agent_patch("*** Update File: n.txt", "*** Move to: m.py", "-one", "+1"),
    "delete out": agent_patch("*** Delete File: ../secret"),
    "delete all": agent_patch("*** Delete File: ."),
    "no hunks": agent_patch("*** Update File: n.txt"),
    "nothing changes": agent_patch("*** Update File: n.txt", "@@", " one"),
    "no sign": agent_patch("*** Update File: n.txt", "@@", "one"),
    "twice": agent_patch("*** Update File: n.txt", "-one", "*** Update File: n.txt", "-two"),
    "deleted and made": agent_patch("*** Delete File: n.txt", "*** Add File: n.txt", "+x"),
    "unknown": agent_patch("*** Run File: n.txt"),
    "empty": agent_patch(),
}


@pytest.mark.attack("WS-13")
@pytest.mark.parametrize("patch", BAD.values(), ids=BAD.keys())
def test_a_bad_patch_changes_nothing(workspace: Workspace, tmp_path: Path, patch: str) -> None:
    (tmp_path / "secret").write_text("mine")
    with pytest.raises(PatchRejected):
        workspace.apply_patch(patch)
    assert sorted(os.listdir(workspace.host_path)) == ["m.py", "n.txt"]
    assert sorted(os.listdir(tmp_path)) == ["secret", "ws"]
    assert (workspace.read_text("m.py"), workspace.read_text("n.txt")) == (TEXT, "one\ntwo\nthree\n")


@pytest.mark.attack("WS-13")
def test_links_lead_nowhere(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").write_text("one\n")
    os.symlink(tmp_path / "out", f"{workspace.host_path}/dir")
    os.symlink(tmp_path / "out/file", f"{workspace.host_path}/leaf")
    for lines in (
        ("*** Update File: leaf", "-one", "+1"),
        ("*** Update File: dir/file", "-one", "+1"),
        ("*** Delete File: dir/file",),
        ("*** Add File: dir/new", "+1"),
        ("*** Update File: n.txt", "*** Move to: dir/new", "-one", "+1"),
    ):
        with pytest.raises((PathTraversal, PatchRejected)):
            workspace.apply_patch(agent_patch(*lines))
    assert os.listdir(tmp_path / "out") == ["file"]
    assert (tmp_path / "out/file").read_text() == "one\n"


@pytest.mark.attack("WS-13")
@pytest.mark.parametrize(
    "patch",
    [
        make_diff("@@ -1,3 +1,3 @@\n one\n" * 100_000 + "-x\n"),
        make_diff("@@ -1,999999999 +1,999999999 @@\n-x\n" + "\n" * 100_000 + "@@\n-x\n"),
        "*** Begin Patch\n*** Update File: big\n" + "@@ nowhere\n" * 20_000 + "-x\n*** End Patch",
        "*** Begin Patch\n*** Update File: big\n" + "@@\n-nowhere\n" * 20_000 + "*** End Patch",
        "*** Begin Patch\n" + "\n" * 500_000,
        "```\n" * 200_000,
    ],
    ids=["many hunks", "huge counts", "many anchors", "many misfits", "empty lines", "fences"],
)
def test_reading_takes_bounded_time(workspace: Workspace, patch: str) -> None:
    workspace.write_file("big", "x\n" * 4_000)
    started = time.process_time()
    with pytest.raises(PatchRejected):
        workspace.apply_patch(patch)
    assert time.process_time() - started < 20


_PIECES = ("*** Begin Patch\n", "*** End Patch\n", "*** Add File: a\n", "*** Update File: n.txt\n", "*** Move to: b\n")
_MORE = ("*** Delete File: n.txt\n", "*** End of File\n", "@@\n", "@@ x\n", "@@ -1 +1 @@\n", "-one\n", "+1\n", " two\n")


@given(st.lists(st.sampled_from([*_PIECES, *_MORE, "\n", "x", "--- a/n.txt\n", "+++ b/n.txt\n"]), max_size=10))
def test_any_text_is_parsed_or_rejected(pieces: list[str]) -> None:
    try:
        patches = parse_patch("*** Begin Patch\n" + "".join(pieces))
    except PatchRejected:
        return
    assert all(patch.target and ".." not in patch.target for patch in patches)
