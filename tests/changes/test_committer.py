"""What a commit writes, given an upper directory that no guest could make, and a host that acts at the worst moment."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.changes.tree import commit, read_tree

from warmcell.changes import apply, layer
from warmcell.changes.base import Bases
from warmcell.changes.detect import Detected, flag_reason
from warmcell.changes.layer import ChangeLayer
from warmcell.changes.model import Change
from warmcell.changes.restore import Restorer
from warmcell.changes.upper import Found, UpperDirectory, copy_upper
from warmcell.core.errors import BackendBusy, BackendUnavailable, PathTraversal, SandboxError
from warmcell.lifetime.descriptors import host_failure
from warmcell.workspace import files
from warmcell.workspace.root import Root

pytestmark = [pytest.mark.needs("linux"), pytest.mark.claim("WC-FS-8")]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("lower", "layer/upper", "layer/bases"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lower/file").write_text("old")
    (tmp_path / "layer/upper/file").write_text("new")
    return tmp_path


def test_set_id_bits_are_dropped(place: Path) -> None:
    program = place / "layer/upper/program"
    program.write_text("#!/bin/sh")
    os.chmod(program, 0o6755)
    os.chmod(place / "layer/upper/file", 0o4755)
    assert set(commit(place).committed) == {"file", "program"}
    for name in ("file", "program"):
        assert (place / "lower" / name).stat().st_mode & 0o7777 == 0o755


def test_new_directories_are_no_more_open_than_the_guests(place: Path) -> None:
    for name, mode in (("shared", 0o755), ("shared/private", 0o700), ("shared/private/below", 0o750)):
        (place / "layer/upper" / name).mkdir()
        (place / "layer/upper" / name).chmod(mode)
    (place / "layer/upper/shared/private/below/key").write_text("secret")
    commit(place)
    made = [place / "lower/shared", place / "lower/shared/private", place / "lower/shared/private/below"]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o755, 0o700, 0o750]


@pytest.mark.claim("WC-FS-9")
@pytest.mark.parametrize("times", [1, 2])
def test_a_file_that_the_host_replaces_at_the_last_moment(place: Path, monkeypatch: Any, times: int) -> None:
    """Once before the exchange, and once more before it is undone."""
    exchange, acts = apply.exchange, []

    def act_first(*names: Any) -> bool:
        if len(acts) < times:
            acts.append(f"by the host {len(acts)}")
            (place / "other").write_text(acts[-1])
            os.rename(place / "other", place / "lower/file")
        return exchange(*names)

    monkeypatch.setattr(apply, "exchange", act_first)
    report = commit(place)
    assert [conflict.reason for conflict in report.conflicts] == [apply.CHANGED]
    assert read_tree(place / "lower") == {"file": acts[-1]}


def test_a_file_that_the_host_makes_at_the_last_moment(place: Path, monkeypatch: Any) -> None:
    (place / "layer/upper/added").write_text("by the guest")
    rename = apply.rename_to_free_name

    def act_first(*names: Any) -> None:
        (place / "lower/added").write_text("by the host")
        rename(*names)

    monkeypatch.setattr(apply, "rename_to_free_name", act_first)
    report = commit(place)
    assert [conflict.reason for conflict in report.conflicts] == [apply.TAKEN]
    assert read_tree(place / "lower") == {"added": "by the host", "file": "new"}


@pytest.mark.parametrize("change", ["deleted", "modified"])
def test_a_base_that_cannot_be_recorded_leaves_no_descriptor(place: Path, monkeypatch: Any, change: str) -> None:
    """The first is recorded as it is listed, the second after it was committed."""
    used: list[int] = []

    def fail(bases: object, parts: object, fd: int, mode: int | None = None) -> None:
        used.append(fd)
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("warmcell.changes.base.Bases.record", fail)
    if change == "deleted":
        os.unlink(place / "layer/upper/file")
        os.mknod(place / "layer/upper/file", 0o20000, 0)
        commit(place)
    else:
        os.rename(place / "layer/upper/file", place / "layer/upper/added")
        with pytest.raises(OSError, match="No space"):
            commit(place)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(used[0])


def test_a_refused_change_of_kind_leaves_no_prepared_file(place: Path, monkeypatch: Any) -> None:
    os.unlink(place / "layer/upper/file")
    (place / "layer/upper/file").symlink_to("other")
    rename, acts = apply.rename_to_free_name, []

    def act_first(*names: Any) -> None:
        if not acts:
            acts.append((place / "lower/file").write_text("by the host"))
        rename(*names)

    monkeypatch.setattr(apply, "rename_to_free_name", act_first)
    report = commit(place)
    assert [conflict.reason for conflict in report.conflicts] == [apply.CHANGED]
    assert read_tree(place / "lower") == {"file": "by the host"}


def test_a_discarded_mode_is_not_set_through_a_link(place: Path) -> None:
    """A running guest may put the link in place of the file after its mode was compared."""
    (place / "secret").touch(0o600)
    os.unlink(place / "layer/upper/file")
    (place / "layer/upper/file").symlink_to(place / "secret")
    changed = Detected(Change("file", "mode"), ("file",), "file")
    with Root(place / "layer/upper") as merged, Root(place / "lower") as lower, pytest.raises(PathTraversal):
        Restorer(merged, lower).restore([changed])
    assert (place / "secret").stat().st_mode & 0o777 == 0o600


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o022, 0o777], ids=oct)
def test_directories_keep_their_modes_in_a_branch_and_after_a_discard(place: Path, mask: int) -> None:
    """A mode that differs from the host's would be a change, which the next commit writes there."""
    for name in ("lower/d", "layer/upper/d", "merged", "branch/upper"):
        (place / name).mkdir(parents=True)
    for name in ("lower/d", "layer/upper/d"):
        (place / name / "file").write_text("in d")
        (place / name).chmod(0o775)
    deleted = Detected(Change("d", "deleted"), ("d",), "deleted")
    with umask(mask), Root(place / "merged") as merged, Root(place / "lower") as lower:
        Restorer(merged, lower).restore([deleted])
        copy_upper(str(place / "layer"), str(place / "branch"), ("upper",))
    for made in (place / "merged/d", place / "branch/upper/d"):
        assert made.stat().st_mode & 0o777 == 0o775
        assert (made / "file").read_text() == "in d"


def test_kept_changes_are_found_again_whatever_the_umask(place: Path) -> None:
    lower = str(place / "lower")
    with umask(0o777):
        first = ChangeLayer(lower, "/work", may_mount=False)
        (Path(first.copy_path) / "file").write_text("kept")
        assert [change.path for change in first.changes()] == ["file"]
        first.keep()
        first.close()
        again = ChangeLayer(lower, "/work", may_mount=False, resume=True)
        again.commit(None, (), dry_run=False, merged=again.upper.root)
        again.close()
    assert read_tree(place / "lower") == {"file": "kept"}


def test_changes_are_kept_on_a_full_disk(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may be full because of them."""
    layer = ChangeLayer(str(place / "lower"), "/work", may_mount=False)
    (Path(layer.copy_path) / "new").write_text("kept")
    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", refuse_space)
        layer.keep()
    layer.close()
    again = ChangeLayer(str(place / "lower"), "/work", may_mount=False, resume=True)
    assert [change.path for change in again.changes()] == ["new"]
    again.keep()
    again.close()


@pytest.mark.parametrize("way", ["keep", "close"])
def test_changes_that_cannot_be_marked_as_kept_are_not_removed(
    place: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    layer = ChangeLayer(str(place / "lower"), "/work", may_mount=False, keeps=way == "close")
    new = Path(layer.copy_path) / "new"
    new.write_text("kept")
    with monkeypatch.context() as patched, pytest.raises(SandboxError, match="could not keep the changes"):
        patched.setattr(os, "rename", refuse_space)
        getattr(layer, way)()
    layer.close()
    assert new.read_text() == "kept" and layer.lower._fd < 0


def refuse_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_base_that_cannot_be_written_leaves_the_previous_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was written in part would be merged as if the rest had been deleted."""
    directory, state = place / "layer/bases", os.stat(place / "lower/file")
    Bases(str(directory)).put(("file",), state, "", b"old")

    def fail(fd: int, data: bytes) -> None:
        os.write(fd, data[:-1])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, pytest.raises(SandboxError, match="space"):
        patched.setattr(files, "write_all", fail)
        Bases(str(directory)).put(("file",), state, "", b"new")
    assert Bases(str(directory)).content(("file",)) == b"old"
    assert len(os.listdir(directory)) == 1


def test_kept_changes_are_found_while_another_program_starts(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at all layers, for interrupted commits and for those of killed programs."""
    kept = ChangeLayer(str(place / "lower"), "/work", may_mount=False)
    (Path(kept.copy_path) / "new").write_text("kept")
    kept_place = kept.keep()
    kept.close()
    (place / "other").mkdir()
    with Root(place / "other") as other:
        layer._create(other).release()
    found: list[bool] = []

    def resume(_: str) -> bool:
        with Root(place / "lower") as lower:
            held = layer.resume_layer(lower)
        found.append(held is not None)
        if held is not None:
            held.release()
        return True

    monkeypatch.setattr(layer, "recover", resume)
    layer.recover_abandoned()
    assert found == [True] and os.listdir(layer.state_place()) == [os.path.basename(kept_place)]


def test_an_interrupted_commit_is_not_forgotten_for_lack_of_descriptors(place: Path, monkeypatch: Any) -> None:
    lower, layer = place / "lower", str(place / "layer")
    identity = (lower.stat().st_dev, lower.stat().st_ino)
    apply.write_journal(layer, apply.Journal("applying", str(lower), identity, ()))

    def fail(path: str) -> None:
        raise host_failure(OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "open the work directory")

    with monkeypatch.context() as patch, pytest.raises(BackendBusy):
        patch.setattr(apply, "Root", fail)
        apply.recover(layer)
    assert apply.read_journal(layer) is not None
    assert apply.recover(layer) and apply.read_journal(layer) is None


@pytest.mark.claim("WC-FS-9")
def test_an_interrupted_commit_waits_for_a_directory_that_is_missing(place: Path) -> None:
    """Its disk is not mounted when the next program starts."""
    lower = place / "lower"
    with Root(lower) as root:
        held = layer._create(root)
    (lower / ".staged").write_text("by the guest")
    state, staged = lower.stat(), (lower / ".staged").stat()
    put = apply.Operation("put", ("added",), (".staged",), staged=(staged.st_dev, staged.st_ino))
    apply.write_journal(held.path, apply.Journal("applying", str(lower), (state.st_dev, state.st_ino), (put,)))
    held.release()
    lower.rename(place / "elsewhere")
    for _ in range(2):
        layer.recover_abandoned()
        assert apply.has_journal(held.path)
        lower.mkdir(exist_ok=True)  # then the empty directory on which it is mounted
    lower.rmdir()
    (place / "elsewhere").rename(lower)
    layer.recover_abandoned()
    assert read_tree(lower) == {"added": "by the guest", "file": "old"}
    assert not os.path.exists(held.path)


def test_a_commit_does_not_replace_the_journal_of_another_directory(place: Path) -> None:
    layer = str(place / "layer")
    apply.write_journal(layer, apply.Journal("applying", str(place / "missing"), (1, 2), ()))
    with pytest.raises(BackendUnavailable, match="interrupted"):
        commit(place)
    found = apply.read_journal(layer)
    assert found is not None and found.lower == str(place / "missing")
    assert read_tree(place / "lower") == {"file": "old"}


def test_the_halves_of_a_repository_cannot_take_turns(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest that still runs hides one of them while the other is looked at."""
    bare, others = place / "layer/upper/x", {"HEAD": "config", "config": "HEAD"}
    bare.mkdir()
    (bare / "HEAD").write_text("ref: refs/heads/main\n")
    (bare / "config").write_text("[core]\n")
    list_entries = UpperDirectory.entries

    def take_turns(self: UpperDirectory) -> Iterator[Found]:
        for entry in list_entries(self):
            other = others.get(entry.name)
            if other is not None:
                (bare / other).rename(place / other)
            yield entry
            if other is not None:
                (place / other).rename(bare / other)

    monkeypatch.setattr(UpperDirectory, "entries", take_turns)
    assert commit(place).skipped == ("x/config",)
    assert read_tree(place / "lower") == {"file": "new", "x/HEAD": "ref: refs/heads/main\n"}


@pytest.mark.parametrize(
    "path",
    [
        ".git/sequencer/opts",
        "lefthook-local.yml",
        ".direnv/flake-profile.rc",
        "mise.local.toml",
        ".devcontainer.json",
        ".forgejo/workflows/ci.yml",
        "sub/compose.override.yaml",
        "rust-toolchain.toml",
        "gradle/wrapper/gradle-wrapper.jar",
        "app/build.gradle",
        "settings.gradle.kts",
        ".pytest.ini",
        ".ssh/authorized_keys",
        ".venv/bin/python",
    ],
)
def test_what_tools_run_without_being_asked_is_flagged(path: str) -> None:
    assert flag_reason(tuple(path.split("/"))) is not None


@pytest.mark.parametrize("path", ["src/action.py", "direnv/x", "compose.py", "gradle/notes", "bin/tool"])
def test_what_only_has_a_similar_name_is_not_flagged(path: str) -> None:
    assert flag_reason(tuple(path.split("/"))) is None


def test_a_clock_that_is_set_back_hides_no_change_of_the_host(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the host changes then has a time before the start, like the file here."""
    changed = ChangeLayer(str(place / "lower"), "/work", may_mount=False)
    (Path(changed.copy_path) / "file").write_text("by the guest")
    offset = layer._clock_offset()
    monkeypatch.setattr(layer, "_clock_offset", lambda: offset - 3600 * 10**9)
    with Root(changed.copy_path) as merged:
        report = changed.commit(None, (), dry_run=False, merged=merged)
    changed.close()
    assert [conflict.path for conflict in report.conflicts] == ["file"] and report.committed == ()
    assert (place / "lower/file").read_text() == "old"


def test_bases_are_recorded_after_the_next_run_though_the_host_stood_still(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 10 s without a processor, none was recorded for 200 s."""
    changed = ChangeLayer(str(place / "lower"), "/work", may_mount=False)
    seconds, used, looks = 100.0, 1.0, 0

    def look() -> None:
        nonlocal seconds, used, looks
        seconds, used, looks = seconds + 10, used + 0.01, looks + 1

    clock = SimpleNamespace(monotonic=lambda: seconds, thread_time=lambda: used)
    with monkeypatch.context() as patched:
        patched.setattr(layer, "time", clock)
        patched.setattr(changed, "_detect", look)
        changed.note_bases()
        changed.note_bases()
        assert looks == 1
        seconds += 0.3
        changed.note_bases()
    changed.close()
    assert looks == 2
