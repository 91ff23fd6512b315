"""Workspaces: made, started, stopped, kept as snapshots and brought back."""

from __future__ import annotations

import errno
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import until
from tests.workspaces.shared_snapshots import share_snapshots
from tests.workspaces.trees import directory_of, list_objects, look

from warmcell import (
    BackendUnavailable,
    ExecutionFailed,
    InvalidRequest,
    MountPoint,
    PolicyViolation,
    ProvisionFailed,
    SessionBusy,
    SnapshotNotFound,
    WorkspaceNotFound,
)
from warmcell.images.layer_tar import write_tree
from warmcell.lifetime.held_directories import hold
from warmcell.sandbox.blocking import Sandbox
from warmcell.workspace.root import Root
from warmcell.workspace.workspace import Workspace
from warmcell.workspaces import GitRepo, Manifest, WorkspaceStore
from warmcell.workspaces.snapshots import take
from warmcell.workspaces.snapshots.objects import LocalObjects
from warmcell.workspaces.snapshots.take import DirectoryReader
from warmcell.workspaces.store import SharedSnapshots


def test_a_manifest_becomes_a_workspace(store: WorkspaceStore, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1,2\n")
    repository = _make_repository(tmp_path / "repository")
    manifest = Manifest(
        files={"src/main.py": "print(6*7)\n", "raw.bin": b"\0\xff"},
        directories=["empty/inside"],
        git=[GitRepo(str(repository), "first", "checkout")],
        uploads={"data": str(tmp_path / "data")},
        env={"COLOUR": "red"},
    )
    made = store.provision(manifest, name="demo")
    assert made.state == "new"
    place = directory_of(store, made)
    assert (place / "src/main.py").read_text() == "print(6*7)\n"
    assert (place / "raw.bin").read_bytes() == b"\0\xff"
    assert (place / "empty/inside").is_dir()
    assert (place / "checkout/file.txt").read_text() == "one\n"
    assert (place / "data/a.csv").read_text() == "1,2\n"
    assert [found.name for found in store.list()] == ["demo"]


def _make_repository(path: Path) -> Path:
    path.mkdir()
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-C", str(path)]
    subprocess.run([*git, "init", "-q"], check=True)
    for text in ("one\n", "two\n"):
        (path / "file.txt").write_text(text)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "-m", text], check=True)
        subprocess.run([*git, "tag", "first" if text == "one\n" else "second"], check=True)
    return path


@pytest.mark.parametrize("names", [["GIT_DIR", "GIT_INDEX_FILE"], ["GIT_WORK_TREE"]], ids=" ".join)
def test_a_program_in_a_hook_of_git_changes_only_its_clone(
    store: WorkspaceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    hooked, other = _make_repository(tmp_path / "hooked"), _make_repository(tmp_path / "other")
    places = {"GIT_DIR": hooked / ".git", "GIT_INDEX_FILE": hooked / ".git/index", "GIT_WORK_TREE": hooked}
    before = look(hooked)
    for name in names:
        monkeypatch.setenv(name, str(places[name]))
    made = store.provision(Manifest(git=[GitRepo(str(other), "first", "checkout")]))
    assert look(hooked) == before
    assert (directory_of(store, made) / "checkout/file.txt").read_text() == "one\n"
    assert (directory_of(store, made) / "checkout/.git/index").is_file()


@pytest.mark.parametrize("into", ["vendor/second", "vendor", "file.txt/second"])
def test_a_repository_does_not_lead_the_next_one_out(store: WorkspaceStore, tmp_path: Path, into: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    first, second = _make_repository(tmp_path / "first"), _make_repository(tmp_path / "second")
    (first / "vendor").symlink_to(outside)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-C", str(first)]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "link"], check=True)
    with pytest.raises(ProvisionFailed, match=into.split("/")[0]):
        store.provision(Manifest(git=[GitRepo(str(first)), GitRepo(str(second), None, into)]))
    assert not list(outside.iterdir()) and store.list() == []


def test_a_manifest_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "workspace.toml"
    path.write_text(
        'directories = ["out"]\nports = [8000]\npackages = ["six"]\n'
        '[files]\n"main.py" = "print(1)"\n[uploads]\n"in" = "data"\n[env]\nA = "b"\n[[git]]\nurl = "./repo"\ninto = "r"\n'
    )
    manifest = Manifest.from_file(path)
    assert manifest.files == {"main.py": "print(1)"} and manifest.ports == [8000]
    assert manifest.uploads == {"in": str(tmp_path / "data")}
    assert manifest.git[0] == GitRepo(f"{tmp_path}/./repo", None, "r")
    path.write_text("port = [1]\n")
    with pytest.raises(InvalidRequest, match="unknown key"):
        Manifest.from_file(path)


@pytest.mark.parametrize(
    "manifest",
    [
        lambda: Manifest(files={"../out": "x"}),
        lambda: Manifest(directories=["/etc"]),
        lambda: Manifest(uploads={"a/../../b": "/etc/hosts"}),
        lambda: Manifest(ports=[0]),
        lambda: Manifest(git=[GitRepo("--upload-pack=touch /tmp/x")]),
        lambda: Manifest(git=[GitRepo("ext::sh -c true")]),
    ],
)
def test_a_manifest_that_leads_out_is_refused(manifest: object) -> None:
    with pytest.raises(Exception, match=r"must|absolute|contains"):
        manifest()  # type: ignore[operator]


@pytest.mark.parametrize("line", ["ports = 80", "uploads = { a = 3 }", "git = 1", "env = 1", "files = 1"])
def test_a_manifest_with_a_value_of_the_wrong_type_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "workspace.toml"
    path.write_text(line)
    with pytest.raises(InvalidRequest, match=line.split(" ")[0]):
        Manifest.from_file(path)


def test_a_failed_provision_leaves_nothing(store: WorkspaceStore, tmp_path: Path) -> None:
    with pytest.raises(ProvisionFailed, match="missing"):
        store.provision(Manifest(uploads={"a": str(tmp_path / "missing")}), name="bad")
    assert store.list() == [] and list_objects(store, "work") == []


def test_a_full_disk_is_the_hosts_fault(store: WorkspaceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = store.provision(Manifest(files={"a": "x"}))

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("warmcell.workspaces.export.write_tree", refuse)
    monkeypatch.setattr("warmcell.workspace.files.write_all", refuse)
    for work in (lambda: store.provision(Manifest(files={"a": "x"})), lambda: store.export(made, tmp_path / "a.tar")):
        with pytest.raises(ExecutionFailed, match="No space left") as failure:
            work()
        assert failure.value.fault == "host"
    assert [found.id for found in store.list()] == [made.id] and list(tmp_path.glob("a.tar*")) == []


def test_a_umask_takes_no_file_of_the_store_from_its_owner(tmp_path: Path) -> None:
    repository = _make_repository(tmp_path / "repository")
    manifest = Manifest(files={"a": "A"}, git=[GitRepo(str(repository), None, "checkout")])
    before = os.umask(0o777)
    try:
        store = WorkspaceStore(tmp_path / "store")
        back = store.resume(store.snapshot(store.provision(manifest)))
    finally:
        os.umask(before)
    closed = [path for path in Path(store.path).rglob("*") if not path.stat().st_mode & 0o400]
    assert closed == []
    assert (directory_of(store, back) / "a").read_text() == "A"
    assert (directory_of(store, back) / "checkout/file.txt").read_text() == "two\n"


@pytest.mark.parametrize("kind", ["packs", "snapshots"])
def test_a_snapshot_that_does_not_fit_leaves_no_unfinished_file(
    store: WorkspaceStore, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    made, put = store.provision(Manifest(files={"a": "text"})), LocalObjects.put

    def refuse(objects: LocalObjects, of_kind: str, name: str, path: str) -> None:
        if of_kind == kind:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        put(objects, of_kind, name, path)

    with monkeypatch.context() as patched, pytest.raises(ExecutionFailed, match="write to the store: No space left"):
        patched.setattr(LocalObjects, "put", refuse)
        store.snapshot(made)
    assert list_objects(store, "staging") == [] and store.snapshots() == ()
    assert look(directory_of(store, store.resume(store.snapshot(made)))) == look(directory_of(store, made))


def test_a_sandbox_on_a_workspace(store: WorkspaceStore) -> None:
    made = store.provision(Manifest(files={"a.txt": "A"}, env={"COLOUR": "red"}))
    with store.start(made) as sandbox:
        assert sandbox.sh("cat a.txt; echo $COLOUR; echo B > b.txt").stdout == "Ared\n"
        assert store.get(made).state == "running"
        with pytest.raises(SessionBusy):
            WorkspaceStore(store.path).start(made)
    assert store.get(made).state == "stopped"
    assert (directory_of(store, made) / "b.txt").read_text() == "B\n"


def test_a_workspace_that_another_program_is_listing_is_not_in_use(
    store: WorkspaceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other program stands still while it has the lock, for longer than a program waits for one that is in use."""
    monkeypatch.setattr("warmcell.workspaces.store._PATIENCE_SECONDS", 0.0)
    made = store.provision(Manifest(files={"a": "b"}))
    listing = hold(str(directory_of(store, made)), is_shared=True)
    assert listing is not None
    end_listing, is_held, looks = listing.release, store._is_held, list[str]()

    def look_beside(identity: str) -> bool:
        looks.append(identity)
        if len(looks) == 5:
            end_listing()
        return is_held(identity)

    monkeypatch.setattr(store, "_is_held", look_beside)
    store.remove(made)
    assert len(looks) >= 5 and not directory_of(store, made).exists()


def test_a_snapshot_on_stop(tmp_path: Path) -> None:
    store = WorkspaceStore(tmp_path / "store", snapshot_on_stop=True)
    made = store.provision(Manifest(files={"a.txt": "A"}))
    with store.start(made) as sandbox:
        sandbox.write_file("b.txt", b"B")
    (taken,) = store.snapshots(made)
    assert look(directory_of(store, store.resume(taken.id))) == look(directory_of(store, made))
    store.start(made)
    assert store.stop(made, snapshot=False) is None
    assert store.stop(made, snapshot=True) == store.snapshots(made)[-1].id


@pytest.mark.parametrize("again", ["stop", "destroy"])
def test_a_stop_that_was_interrupted_can_be_repeated(
    store: WorkspaceStore, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    made = store.provision()
    sandbox = store.start(made)

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Sandbox, "destroy", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.stop(made)
    assert store.get(made).state == "running"
    store.stop(made) if again == "stop" else sandbox.destroy()
    assert store.get(made).state == "stopped"
    with store.start(made):
        assert store.get(made).state == "running"


def test_everything_that_a_tree_can_have_comes_back(store: WorkspaceStore) -> None:
    made = store.provision(name="odd")
    place = directory_of(store, made)
    (place / "plain.txt").write_bytes(os.urandom(700_000))
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o751)
    os.utime(place / "run.sh", ns=(1, 1_234_567_890_123_456_789))
    (place / "deep/er").mkdir(parents=True)
    (place / "deep").chmod(0o750)
    (place / "deep/er/secret").write_text("x")
    (place / "deep/er/secret").chmod(0o400)
    os.link(place / "plain.txt", place / "deep/er/same.bin")
    os.symlink("/etc/passwd", place / "out")
    os.symlink("nowhere", place / "deep/dangling")
    (Path(os.fsdecode(os.fsencode(place) + b"/caf\xe9"))).write_text("not UTF-8")
    with open(place / "sparse", "wb") as file:
        file.write(b"begin" * 20)
        file.seek(2 << 30)
        file.write(b"middle")
        file.truncate(4 << 30)
    os.mkfifo(place / "fifo")
    taken = store.snapshot(made)
    assert taken.skipped == ("fifo",)
    back = directory_of(store, store.resume(taken))
    (place / "fifo").unlink()
    assert look(back) == look(place)
    assert (back / "sparse").stat().st_blocks * 512 < 4 << 20
    assert (back / "plain.txt").stat().st_ino == (back / "deep/er/same.bin").stat().st_ino


def test_a_second_snapshot_stores_only_what_changed(store: WorkspaceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"d{number % 20}/{number}": os.urandom(500) for number in range(400)}
    made = store.provision(Manifest(files=files))
    place = directory_of(store, made)
    long_ago = 1_000_000_000
    monkeypatch.setattr("warmcell.workspaces.snapshots.take._TICK_NS", -(10**12))  # no file counts as just written
    store.snapshot(made)
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *rest, **named: (opened.append(str(path)), real(path, *rest, **named))[1]
    )
    for number in range(10):
        (place / f"d{number}/{number}").write_bytes(os.urandom(600))
    os.utime(place / "d15/15", (long_ago, long_ago))  # the time alone: read again, stored once
    taken = store.snapshot(made)
    monkeypatch.undo()
    assert {name for name in opened if name.isdecimal()} == {*map(str, range(10)), "15"}
    first, second = store.snapshots(made)
    assert second.id == taken and second.files == 400
    assert first.stored_bytes > 400 * 500 and second.stored_bytes < 10 * 600 + 30_000


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may change again without a new time, so the next snapshot must not rely on the one that it has."""
    root = Root(tmp_path)
    (tmp_path / "a").write_text("old")
    try:
        monkeypatch.setattr(take, "_TICK_NS", 10**12)
        assert DirectoryReader(lambda data: "0" * 48, None).read(root).scan == b"{}"
        monkeypatch.setattr(take, "_TICK_NS", -(10**12))
        assert b'"a":' in DirectoryReader(lambda data: "0" * 48, None).read(root).scan
    finally:
        root.close()


def test_a_file_with_its_old_time_is_read_again(store: WorkspaceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take, "_TICK_NS", -(10**12))
    made = store.provision(Manifest(files={"a": "old"}))
    path = directory_of(store, made) / "a"
    state = path.stat()
    store.snapshot(made)
    until(lambda: _write_again(path, state) != state.st_ctime_ns)
    assert (directory_of(store, store.resume(store.snapshot(made))) / "a").read_text() == "new"


def _write_again(path: Path, state: os.stat_result) -> int:
    with open(path, "r+b") as file:
        file.write(b"new")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    return path.stat().st_ctime_ns


def test_removal_and_compaction(store: WorkspaceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmcell.workspaces.snapshots.take._TICK_NS", -(10**12))  # unchanged files are not read
    made = store.provision(Manifest(files={"shared": os.urandom(300_000), "old": os.urandom(300_000)}))
    first = store.snapshot(made, name="first")
    (directory_of(store, made) / "old").unlink()
    (directory_of(store, made) / "new").write_bytes(b"new")
    second = store.snapshot(made)
    before = look(directory_of(store, made))
    store.remove("first")
    assert store.compact() >= 300_000
    with pytest.raises(SnapshotNotFound):
        store.resume(first)
    assert look(directory_of(store, store.resume(second))) == before
    # What the last scan knew may be gone: the next snapshot is whole nevertheless.
    store.remove(second)
    store.compact()
    assert list_objects(store, "packs") == []
    assert look(directory_of(store, store.resume(store.snapshot(made)))) == before


def test_names_and_removal_of_workspaces(store: WorkspaceStore) -> None:
    made = store.provision(name="one")
    with pytest.raises(InvalidRequest, match="choose another name"):
        store.provision(name="one")
    with pytest.raises(InvalidRequest, match="name"):
        store.provision(name="../one")
    taken = store.snapshot(made)
    store.remove("one")
    with pytest.raises(WorkspaceNotFound):
        store.start(made)
    assert store.resume(taken, name="two").name == "two"
    assert [info.id for info in store.snapshots(made.id)] == [taken]


def test_export_to_a_directory_and_a_tar_file(store: WorkspaceStore, tmp_path: Path) -> None:
    made = store.provision(Manifest(files={"a/b.txt": "B"}))
    taken = store.snapshot(made)
    store.export(taken, tmp_path / "copy")
    store.export(made, tmp_path / "copy.tar.gz")
    store.export(taken, tmp_path / "taken.tar")
    assert (tmp_path / "copy/a/b.txt").read_text() == "B"
    for name in ("copy.tar.gz", "taken.tar"):
        with tarfile.open(tmp_path / name) as archive:
            assert "a/b.txt" in archive.getnames()
    with pytest.raises(InvalidRequest, match="exists"):
        store.export(taken, tmp_path / "copy")
    assert [path.name for path in list_objects(store, "work")] == [made.id]


def test_an_export_replaces_no_file_that_came_meanwhile(
    store: WorkspaceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, target = store.provision(), tmp_path / "copy.tar"

    def take_name(*arguments: Any) -> int:
        target.write_text("of another program")
        return write_tree(*arguments)

    monkeypatch.setattr("warmcell.workspaces.export.write_tree", take_name)
    with pytest.raises(InvalidRequest, match="exists"):
        store.export(made, target)
    assert [path.read_text() for path in tmp_path.glob("copy.tar*")] == ["of another program"]


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_snapshots_at_a_url(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    share_snapshots(f"{scheme}://{tmp_path}/bucket", {}, tmp_path, monkeypatch)


def test_a_failed_upload_is_explained_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pytest.importorskip("fsspec.implementations.memory")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    store = WorkspaceStore("memory://failing/bucket")
    made = store.provision(Manifest(files={"a": "text"}))

    def fail(*arguments: object) -> None:
        raise RuntimeError("quota exceeded")

    with monkeypatch.context() as patch:
        patch.setattr(memory.MemoryFileSystem, "put_file", fail)
        with pytest.raises(BackendUnavailable, match=r"cannot write packs/.* in 'memory://.*bucket': quota exceeded"):
            store.snapshot(made)
    assert not list_objects(store, "staging")
    assert look(directory_of(store, store.resume(store.snapshot(made)))) == look(directory_of(store, made))


def test_encrypted_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    monkeypatch.setenv("WARMCELL_STORE_KEY", "11" * 32)
    store = WorkspaceStore(tmp_path / "store")
    made = store.provision(Manifest(files={"canary-name": "canary-content"}, env={"A": "canary-secret"}))
    taken = store.snapshot(made)
    assert look(directory_of(store, store.resume(taken))) == look(directory_of(store, made))
    kept = [path for kind in ("packs", "snapshots") for path in list_objects(store, kind)]
    for path in [*kept, Path(store.path, "catalogue.db")]:
        assert b"canary" not in path.read_bytes(), path
    with pytest.raises(Exception, match="decrypted"):
        WorkspaceStore(store.path, key=bytes(32)).resume(taken)
    monkeypatch.setenv("WARMCELL_STORE_KEY", "short")
    with pytest.raises(InvalidRequest, match="64 hexadecimal digits"):
        WorkspaceStore(store.path)


def test_a_restore_leaves_a_read_only_directory_alone(tmp_path: Path, store: WorkspaceStore) -> None:
    (work := tmp_path / "directory").mkdir()
    (work / "file").write_text("old")
    snapshots, workspace = SharedSnapshots(store.path, {}, None), Workspace(mounts=[MountPoint(work, "/work")])
    try:
        taken = snapshots.take(workspace, "source")
        (work / "file").write_text("new")
        with pytest.raises(PolicyViolation, match="read-only"):
            snapshots.restore(workspace, taken)
        assert (work / "file").read_text() == "new"
    finally:
        workspace.close()


def test_a_restore_that_cannot_lock_the_store_keeps_the_files(
    tmp_path: Path, store: WorkspaceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction may take longer than a restore waits for it."""
    monkeypatch.setattr("warmcell.workspaces.snapshots.archive._PATIENCE_SECONDS", 0.05)
    (work := tmp_path / "directory").mkdir()
    (work / "file").write_text("old")
    snapshots, workspace = SharedSnapshots(store.path, {}, None), Workspace(work)
    try:
        taken = snapshots.take(workspace, "source")
        (work / "file").write_text("new")
        with store._archive.lock(is_shared=False), pytest.raises(ExecutionFailed, match="compacting"):
            snapshots.restore(workspace, taken)
        assert (work / "file").read_text() == "new"
        snapshots.restore(workspace, taken)
        assert (work / "file").read_text() == "old"
    finally:
        workspace.close()


def test_a_snapshot_of_a_sandbox_has_what_was_written_through_mappings(
    tmp_path: Path, store: WorkspaceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a tmpfs that changes no time of the file."""
    (work := tmp_path / "directory").mkdir()
    (work / "file").write_text("old")
    monkeypatch.setattr(take, "_identity", lambda state: [])
    monkeypatch.setattr(take, "_TICK_NS", -(10**15))  # every file counts as written long ago
    snapshots, workspace = SharedSnapshots(store.path, {}, None), Workspace(work)
    try:
        snapshots.take(workspace, "source")
        (work / "file").write_text("new")
        later = snapshots.take(workspace, "source")
        (work / "file").write_text("later")
        snapshots.restore(workspace, later)
        assert (work / "file").read_text() == "new"
    finally:
        workspace.close()
