"""`Workspace.watch`: events of the caller's and the guest's files, not of our temporary ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmcell.workspace.file_watch import FileWatch
from warmcell.workspace.workspace import Workspace


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    workspace = Workspace()
    yield workspace
    workspace.close()


def collect(watch: FileWatch) -> list[tuple[str, str]]:
    watch.gather()
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
