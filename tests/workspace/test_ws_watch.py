"""`Workspace.watch`: events of the caller's and the guest's files, not of our temporary ones."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from warmcell.workspace import file_watch
from warmcell.workspace.file_watch import OVERFLOW, FileWatch, Record
from warmcell.workspace.workspace import Workspace


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    workspace = Workspace()
    yield workspace
    workspace.close()


def collect(watch: FileWatch) -> list[tuple[str, str]]:
    while watch.gather():
        pass
    events = []
    while (event := watch.next_event()) is not None:
        events.append((event.kind, event.path))
    return events


def test_our_temporary_files_are_not_reported(workspace: Workspace) -> None:
    workspace.mkdir("a")
    watch = workspace.watch(recursive=True)
    workspace.write_file("a/b.txt", b"1")
    workspace.write_file("a/b.txt", b"2")
    workspace.apply_patch("--- a/a/b.txt\n+++ b/a/b.txt\n@@ -1 +1 @@\n-2\n\\ No newline at end of file\n+3\n")
    workspace.remove("a")
    events = collect(watch)
    watch.close()
    assert ("created", "a/b.txt") in events
    assert ("deleted", "a") in events
    assert not [path for _, path in events if ".warmcell" in path]


def test_removing_a_tree_reports_no_temporary_directories(workspace: Workspace) -> None:
    workspace.mkdir("a/b/c/d", parents=True)
    watch = workspace.watch(recursive=True)
    workspace.remove("a")
    events = collect(watch)
    watch.close()
    assert events and not [path for _, path in events if ".warmcell" in path]


def test_a_guest_cannot_hide_behind_our_prefix(workspace: Workspace) -> None:
    watch = workspace.watch()
    (Path(workspace.host_path) / f".warmcell-{os.urandom(12).hex()}").touch()
    events = collect(watch)
    watch.close()
    assert [kind for kind, _ in events][:1] == ["created"]


@pytest.mark.attack("RX-11")
def test_one_call_does_little_for_a_large_tree(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop makes that call, for a guest that renames the tree again and again."""
    add, added = file_watch.add_watch, []

    def add_slowly(descriptor: int, directory: int) -> int:
        time.sleep(0.002)
        added.append(directory)
        return add(descriptor, directory)

    for number in range(100):
        workspace.mkdir(f"tree/{number}", parents=True)
    workspace.write_file("tree/7/file", b"1")
    work = Path(workspace.host_path)
    watch = workspace.watch(recursive=True)
    monkeypatch.setattr(file_watch, "add_watch", add_slowly)
    (work / "tree").rename(work / "other")
    watch.gather()
    assert len(added) < 10
    events = collect(watch)
    assert len(added) == 101 and events[:2] == [("moved", "tree"), ("created", "other")]
    assert {("created", "other/7"), ("created", "other/7/file")} <= set(events) and len(events) == 103
    (work / "other" / "8" / "new").mkdir()
    assert ("created", "other/8/new") in collect(watch)
    watch.close()


@pytest.mark.attack("RX-11")
def test_the_rest_of_a_very_large_tree_is_watched_later(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest chooses its size. What happens there meanwhile is reported as lost."""
    monkeypatch.setattr(file_watch, "MOST_AT_ONCE", 10)
    for number in range(100):
        workspace.mkdir(f"tree/{number}", parents=True)
    watch = workspace.watch(recursive=True)
    assert watch.has_work and len(watch._directories) < 10
    assert collect(watch) == [("overflow", ".")] and len(watch._directories) == 102
    (Path(workspace.host_path) / "tree/7/new").mkdir()
    assert collect(watch) == [("created", "tree/7/new")]
    watch.close()


def lose_records(watch: FileWatch) -> None:
    """As the kernel does when its queue is full."""
    os.read(watch.descriptor, 1 << 16)
    watch._records.append((Record(-1, OVERFLOW, "", 0), 0))


def test_a_directory_that_left_while_records_were_lost_is_not_watched(workspace: Workspace) -> None:
    workspace.mkdir("sub/in", parents=True)
    workspace.mkdir("sub/stays")
    work = Path(workspace.host_path)
    watch = workspace.watch("sub", recursive=True)
    (work / "sub" / "in").rename(work / "away")
    lose_records(watch)
    assert collect(watch) == [("overflow", "sub")]
    (work / "away" / "file").touch()
    (work / "sub" / "stays" / "seen").mkdir()
    assert collect(watch) == [("created", "sub/stays/seen")]
    watch.close()


@pytest.mark.parametrize("recursive", [True, False])
def test_a_watch_ends_though_the_removal_of_its_directory_was_lost(workspace: Workspace, recursive: bool) -> None:
    workspace.mkdir("sub/in", parents=True)
    watch = workspace.watch("sub", recursive=recursive)
    workspace.remove("sub")
    lose_records(watch)
    assert collect(watch) == [("overflow", "sub")] and watch.is_over
    watch.close()


class UntypedEntries:
    """The entries of a directory where the file system does not state their types, as NFS may not."""

    def __init__(self, directory: int, entries: Any) -> None:
        self._directory, self._entries = directory, entries

    def __enter__(self) -> UntypedEntries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries.close()

    def __iter__(self) -> UntypedEntries:
        return self

    def __next__(self) -> SimpleNamespace:
        name = next(self._entries).name
        return SimpleNamespace(name=name, is_dir=lambda follow_symlinks: self._is_directory(name))

    def _is_directory(self, name: str) -> bool:
        """As `os.DirEntry` does: by the number of the descriptor that was listed."""
        return stat.S_ISDIR(os.stat(name, dir_fd=self._directory, follow_symlinks=False).st_mode)


def test_directories_are_found_where_entries_have_no_type(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry is looked up in its directory, which was closed by then."""
    scan = os.scandir

    def scan_without_types(directory: Any) -> Any:
        entries = scan(directory)
        return UntypedEntries(directory, entries) if isinstance(directory, int) else entries

    workspace.mkdir("a/in", parents=True)
    workspace.mkdir("b")
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scan_without_types)
        watch = workspace.watch(recursive=True)
    (Path(workspace.host_path) / "a" / "in" / "new").mkdir()
    (Path(workspace.host_path) / "b" / "new").mkdir()
    assert collect(watch) == [("created", "a/in/new"), ("created", "b/new")]
    watch.close()
