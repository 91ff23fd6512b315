"""A commit that is killed at any point is undone, or completed by the next start; never half done."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.changes.tree import commit, read_tree
from tests.helpers import fork_child

from warmcell.changes import apply
from warmcell.changes.apply import recover
from warmcell.errors import BackendUnavailable, InvalidRequest
from warmcell.workspace import remove

#: At so many points of one commit, evenly spread over its function calls.
POINTS = 60
#: What compares each path with all patterns of flags: most calls are its own, and it changes nothing.
PURE = ("flag_reason", "_compile", "_prefixes", "<genexpr>")


def prepare(place: Path) -> None:
    """A directory of the host, an upper directory with changes of every kind, and room for the journal."""
    lower, upper = place / "lower", place / "layer/upper"
    for path in (lower / "old", upper / "new/deep", place / "layer/bases"):
        path.mkdir(parents=True)
    for number in range(4):
        (lower / f"file{number}").write_text(f"old {number}")
        (upper / f"file{number}").write_text(f"new {number}")
        (lower / f"old/{number}").write_text("to be deleted")
        (upper / f"new/deep/{number}").write_text("added")
    (lower / "gone").write_text("to be deleted too")
    for whiteout in ("old", "gone"):
        os.mknod(upper / whiteout, 0o20000, 0)
    (lower / "link").symlink_to("file0")
    (upper / "link").symlink_to("file1")
    (lower / "type").write_text("a file")
    (upper / "type").mkdir()
    (upper / "type/inside").write_text("now a directory")


class Killer:
    """Kills this process at its nth call of a function of ours, of `os`, or of the kernel."""

    def __init__(self, at: int) -> None:
        self.calls, self.at = 0, at

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if name not in PURE and "/changes/" in file and event in ("call", "c_call", "c_return"):
            self.calls += 1
            if self.calls == self.at:
                os.kill(os.getpid(), signal.SIGKILL)


def count_calls(place: Path) -> int:
    killer = Killer(-1)
    sys.setprofile(killer)
    try:
        commit(place)
    finally:
        sys.setprofile(None)
    return killer.calls


def commit_and_die(place: Path, at: int) -> None:
    sys.setprofile(Killer(at))
    commit(place)


@pytest.mark.needs("linux")
@pytest.mark.claim("WC-FS-9")
def test_a_killed_commit_is_undone_or_completed(tmp_path: Path) -> None:
    prepare(tmp_path / "whole")
    before = read_tree(tmp_path / "whole/lower")
    calls = count_calls(tmp_path / "whole")
    after = read_tree(tmp_path / "whole/lower")
    assert before != after
    seen = set()
    for point in range(POINTS):
        place = tmp_path / str(point)
        prepare(place)
        child = fork_child(lambda place=place, at=1 + point * calls // POINTS: commit_and_die(place, at))
        os.waitpid(child, 0)
        found = apply.read_journal(str(place / "layer"))
        seen.add("none" if found is None else found.state)
        assert recover(str(place / "layer"))
        state = read_tree(place / "lower")
        assert state in (before, after), f"half done after {point}"
        assert apply.read_journal(str(place / "layer")) is None
        shutil.rmtree(place)
    assert seen == {"none", "staging", "applying"}


@pytest.mark.needs("linux")
def test_recovery_keeps_what_the_host_changed_since(tmp_path: Path) -> None:
    prepare(tmp_path)
    child = fork_child(lambda: commit_and_die_while_applying(tmp_path))
    os.waitpid(child, 0)
    assert apply.read_journal(str(tmp_path / "layer")).state == "applying"  # type: ignore[union-attr]
    (tmp_path / "lower/file3").write_text("by the host, later")
    (tmp_path / "lower/gone").write_text("by the host, later")
    assert recover(str(tmp_path / "layer"))
    assert (tmp_path / "lower/file3").read_text() == "by the host, later"
    assert (tmp_path / "lower/gone").read_text() == "by the host, later"
    assert (tmp_path / "lower/file0").read_text() == "new 0"
    assert not [name for name in os.listdir(tmp_path / "lower") if name.startswith(".warmcell")]


@pytest.mark.needs("linux")
@pytest.mark.claim("WC-FS-9")
@pytest.mark.parametrize("times", [1, 2])
def test_recovery_keeps_the_old_name_if_the_host_took_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A renamed file is a new file and a deletion: the deletion alone would lose the content."""
    for name in ("lower", "layer/upper", "layer/bases"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lower/old").write_text("content")
    (tmp_path / "layer/upper/new").write_text("content")
    os.mknod(tmp_path / "layer/upper/old", 0o20000, 0)

    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(apply, "apply", interrupt)
        commit(tmp_path)
    journal = apply.read_journal(str(tmp_path / "layer"))
    assert journal is not None and [operation.do for operation in journal.operations] == ["put", "delete"]
    (tmp_path / "lower/new").write_text("by the host")
    for _ in range(times):  # twice: killed before it removed the journal
        apply.write_journal(str(tmp_path / "layer"), journal)
        assert recover(str(tmp_path / "layer"))
    assert read_tree(tmp_path / "lower") == {"new": "by the host", "old": "content"}


@pytest.mark.needs("linux")
@pytest.mark.claim("WC-FS-9")
def test_the_removal_of_a_tree_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories inside are moved before they are removed: a part of them must not stay at another name."""
    for name in ("lower/old/deep/deeper", "layer/upper", "layer/bases"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lower/old/deep/deeper/file").write_text("to be deleted")
    os.mknod(tmp_path / "layer/upper/old", 0o20000, 0)

    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(remove, "_rmdir", interrupt)
        commit(tmp_path)
    assert recover(str(tmp_path / "layer"))
    assert os.listdir(tmp_path / "lower") == []


def commit_and_die_while_applying(place: Path) -> None:
    killer, write = Killer(-1), apply.write_journal

    def note(directory: str, written: apply.Journal) -> None:
        write(directory, written)
        if written.state == "applying":
            killer.at = killer.calls + 20

    apply.write_journal = note  # type: ignore[assignment]
    sys.setprofile(killer)
    commit(place)


@pytest.mark.needs("linux")
@pytest.mark.parametrize("state", ["staging", "applying"])
def test_a_full_disk_leaves_the_directory_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    prepare(tmp_path)
    before, names, write = read_tree(tmp_path / "lower"), sorted(os.listdir(tmp_path / "lower")), apply.write_journal

    def fill(directory: str, written: apply.Journal) -> None:
        if written.state == state:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(directory, written)

    monkeypatch.setattr(apply, "write_journal", fill)
    with pytest.raises(OSError, match="No space left"):
        commit(tmp_path)
    assert read_tree(tmp_path / "lower") == before and sorted(os.listdir(tmp_path / "lower")) == names
    assert apply.read_journal(str(tmp_path / "layer")) is None


@pytest.mark.needs("linux")
def test_a_commit_that_was_broken_off_is_completed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path / "whole")
    commit(tmp_path / "whole")
    prepare(tmp_path / "broken")
    carry_out, count = apply.apply, itertools.count()

    def interrupt(*arguments: Any) -> None:
        if next(count) == 3:
            raise KeyboardInterrupt
        carry_out(*arguments)

    monkeypatch.setattr(apply, "apply", interrupt)
    with pytest.raises(KeyboardInterrupt):
        commit(tmp_path / "broken")
    commit(tmp_path / "broken")
    assert read_tree(tmp_path / "broken/lower") == read_tree(tmp_path / "whole/lower")


_OPERATION = {"do": "put", "parts": ["file0"], "temporary": [".x"]}


@pytest.mark.needs("linux")
@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"[" * 100_000, b'{"state": "applying"}']
    + [
        json.dumps({"state": state, "lower": "/", "identity": [1, 2], "operations": operations}).encode()
        for state, operations in [
            ("other", []),
            ("applying", 5),
            ("applying", [[]]),
            ("applying", [{**_OPERATION, "do": "run"}]),
            ("applying", [{**_OPERATION, "parts": [5]}]),
            ("applying", [{**_OPERATION, "parts": "file0"}]),
            ("applying", [{**_OPERATION, "more": 1}]),
        ]
    ],
)
def test_a_damaged_journal_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal.json").write_bytes(content)
    with pytest.raises(BackendUnavailable, match="the journal of a commit"):
        recover(str(tmp_path))


@pytest.mark.needs("linux")
def test_a_journal_is_a_regular_file(tmp_path: Path) -> None:
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/hostname", path)):
        make(tmp_path / "journal.json")
        with pytest.raises(InvalidRequest, match="not a regular file"):
            recover(str(tmp_path))
        shutil.move(tmp_path / "journal.json", tmp_path / f"{make}")
    (tmp_path / "other").write_text("kept")
    os.symlink("other", tmp_path / "journal.json.new")
    with pytest.raises(OSError):
        apply.write_journal(str(tmp_path), apply.Journal("staging", "/", (1, 2), ()))
    assert (tmp_path / "other").read_text() == "kept"
