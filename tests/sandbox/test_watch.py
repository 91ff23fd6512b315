"""`sandbox.watch`: changes by guests and the host, reported in bounded memory."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from tests.helpers import until
from tests.sandbox.fakes import Factory

from warmcell import AsyncSandbox, FileEvent, MountPoint, PathTraversal, Sandbox, SandboxDestroyed
from warmcell.sandbox.watches import AsyncWatch
from warmcell.workspace import file_watch
from warmcell.workspace.errors import FileMissing, WrongKind

pytestmark = pytest.mark.needs("linux")
LAST = FileEvent("last", "created")


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    work = tmp_path / "work"
    work.mkdir()
    with Sandbox(work, guest_factory=Factory()) as made:
        yield made


def events_until_mark(sandbox: Sandbox, events: Iterator[FileEvent]) -> list[tuple[str, str]]:
    """All events until a mark, which is made here, in the directory that is watched."""
    (Path(sandbox.work_dir) / "last").touch()
    return [(event.path, event.kind) for event in takewhile(lambda event: event != LAST, events)]


def test_each_kind_of_event(sandbox: Sandbox) -> None:
    work = Path(sandbox.work_dir)
    (work / "before").write_text("old")
    events = sandbox.watch()
    (work / "a").touch()
    with (work / "before").open("a") as file:
        file.write("new")
    (work / "a").rename(work / "b")
    (work / "b").unlink()
    (work / "sub").mkdir()
    (work / "sub" / "unseen").touch()
    expected = [("a", "created"), ("before", "modified"), ("a", "moved"), ("b", "created")]
    assert events_until_mark(sandbox, events) == [*expected, ("b", "deleted"), ("sub", "created")]
    events.close()


def test_new_directories_are_watched_before_events_are_read(sandbox: Sandbox) -> None:
    work = Path(sandbox.work_dir)
    events = sandbox.watch(recursive=True)
    known = events._async._driver._watch._directories
    (work / "sub" / "deep").mkdir(parents=True)
    until(lambda: len(known) == 3)
    (work / "sub" / "deep" / "brief").touch()
    (work / "sub" / "deep" / "brief").unlink()
    made = [("sub", "created"), ("sub/deep", "created"), ("sub/deep/brief", "created")]
    assert [item for item in events_until_mark(sandbox, events) if item[1] != "modified"] == [
        *made,
        ("sub/deep/brief", "deleted"),
    ]


def test_the_rest_of_a_very_large_tree_is_watched_before_events_are_read(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "MOST_AT_ONCE", 1)
    work = Path(sandbox.work_dir)
    (work / "sub" / "deep").mkdir(parents=True)
    events = sandbox.watch(recursive=True)
    known = events._async._driver._watch._directories
    until(lambda: len(known) == 3)
    (work / "sub" / "deep" / "new").touch()
    assert events_until_mark(sandbox, events) == [(".", "overflow"), ("sub/deep/new", "created")]
    events.close()


def test_events_during_the_scan_of_a_new_directory_are_reported_once(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both the scan and the kernel see the name; later events about it are reported."""
    work, add = Path(sandbox.work_dir), file_watch.add_watch

    def add_and_make(descriptor: int, directory: int) -> int:
        watch = add(descriptor, directory)
        for name in ("file", "directory"):
            if not os.path.lexists(f"/proc/self/fd/{directory}/{name}") and "sub/" not in os.readlink(
                f"/proc/self/fd/{directory}"
            ):
                os.mkdir(name, dir_fd=directory) if name == "directory" else os.mknod(name, dir_fd=directory)
        return watch

    events = sandbox.watch(recursive=True)
    monkeypatch.setattr(file_watch, "add_watch", add_and_make)
    (work / "sub").mkdir()
    until(lambda: len(events._async._driver._watch._directories) == 3)
    monkeypatch.undo()
    (work / "other").touch()
    (work / "other").rename(work / "sub" / "file")
    seen = events_until_mark(sandbox, events)
    assert sorted(seen[:3]) == [("sub", "created"), ("sub/directory", "created"), ("sub/file", "created")]
    assert seen[3:] == [("other", "created"), ("other", "moved"), ("sub/file", "created")]


@pytest.mark.attack("RX-11")
def test_unread_events_are_bounded(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory, and in the work that a guest can cause."""
    monkeypatch.setattr(file_watch, "MOST_TEXT", 4000)
    work = Path(sandbox.work_dir)
    events = sandbox.watch(recursive=True)
    kept = events._async._driver._watch
    for number in range(200):
        (work / f"{number:0100}").touch()
    until(lambda: kept.is_full)
    (work / "more").mkdir()
    time.sleep(0.1)
    assert len(kept._found) < 200 and events._async._driver._loop is None
    seen = events_until_mark(sandbox, events)
    assert ("more", "created") in seen and sum(kind == "created" for _, kind in seen) == 201


@pytest.mark.needs("user namespaces")
def test_changes_by_a_guest_are_reported(tmp_path: Path) -> None:
    with Sandbox(tmp_path) as sandbox, sandbox.watch(recursive=True) as events:
        sandbox.sh("mkdir -p deep/er && echo 1 > deep/er/file; echo 2 >> deep/er/file; mv deep other")
        seen = events_until_mark(sandbox, events)
    assert {("deep", "created"), ("deep", "moved"), ("other", "created"), ("other/er/file", "created")} <= set(seen)


def test_paths_below_a_moved_directory_are_right(sandbox: Sandbox) -> None:
    work = Path(sandbox.work_dir)
    (work / "one" / "in").mkdir(parents=True)
    events = sandbox.watch(recursive=True)
    (work / "one").rename(work / "two")
    seen = events_until_mark(sandbox, events)
    assert {("one", "moved"), ("two", "created"), ("two/in", "created")} <= set(seen)
    (work / "last").unlink()
    (work / "two" / "in" / "new").touch()
    assert ("two/in/new", "created") in events_until_mark(sandbox, events)


@pytest.mark.attack("RX-11")
def test_a_large_tree_is_reported_piece_by_piece(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though each turn of the event loop does only one step."""
    monkeypatch.setattr(file_watch, "SLICE_SECONDS", -1.0)
    work = Path(sandbox.work_dir)
    for number in range(20):
        (work / "tree" / str(number)).mkdir(parents=True)
    events = sandbox.watch(recursive=True)
    (work / "tree").rename(work / "other")
    seen = events_until_mark(sandbox, events)
    assert {("tree", "moved"), *((f"other/{number}", "created") for number in range(20))} <= set(seen)
    (work / "last").unlink()
    (work / "other" / "7" / "new").mkdir()
    assert ("other/7/new", "created") in events_until_mark(sandbox, events)
    events.close()


def test_a_watch_begins_at_the_call_and_ends_with_close(sandbox: Sandbox) -> None:
    (Path(sandbox.work_dir) / "before").touch()
    events = sandbox.watch()
    assert events_until_mark(sandbox, events) == []
    closer = threading.Timer(0.2, events.close)
    closer.start()
    assert list(takewhile(lambda event: event == FileEvent("last", "modified"), events)) in (
        [],
        [FileEvent("last", "modified")],
    )
    assert list(events) == []
    events.close()
    closer.join()


def test_a_watch_ends_with_the_sandbox_and_leaves_no_descriptor(tmp_path: Path) -> None:
    def watchers() -> int:
        links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        return sum("inotify" in os.readlink(link) for link in links if os.path.lexists(link))

    before = watchers()
    sandbox = Sandbox(tmp_path, guest_factory=Factory())
    events, dropped = sandbox.watch(), sandbox.watch()
    assert watchers() == before + 2
    del dropped
    gc.collect()
    assert watchers() == before + 1
    dropped = sandbox.watch(recursive=True)
    del dropped
    gc.collect()
    until(lambda: watchers() == before + 1)
    closer = threading.Timer(0.2, sandbox.destroy)
    closer.start()
    assert list(events) == []
    closer.join()
    assert watchers() == before
    with pytest.raises(SandboxDestroyed):
        sandbox.watch()


@pytest.mark.attack("WS-02")
def test_links_are_never_followed(sandbox: Sandbox, tmp_path: Path) -> None:
    work, outside = Path(sandbox.work_dir), tmp_path / "outside"
    (outside / "in").mkdir(parents=True)
    (work / "link").symlink_to(outside)
    for path in ("link", "link/in", "../outside", "/etc"):
        with pytest.raises(PathTraversal):
            sandbox.watch(path)
    events = sandbox.watch(recursive=True)
    (work / "later").symlink_to(outside)
    (outside / "canary").touch()
    (outside / "in" / "canary").touch()
    assert events_until_mark(sandbox, events) == [("later", "created")]


def test_unwatchable_paths_are_refused(sandbox: Sandbox) -> None:
    (Path(sandbox.work_dir) / "file").touch()
    with pytest.raises(WrongKind):
        sandbox.watch("file")
    with pytest.raises(FileMissing):
        sandbox.watch("missing")


def test_removing_the_directory_ends_its_watch(sandbox: Sandbox) -> None:
    sandbox.mkdir("sub")
    events = sandbox.watch("sub")
    sandbox.remove("sub")
    assert list(events) == []


def test_mounts_by_the_paths_that_guests_use(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with Sandbox(mounts=[MountPoint(data, "/data", writable=True)], guest_factory=Factory()) as sandbox:
        events = sandbox.watch("/data")
        (data / "new").touch()
        assert next(events) == FileEvent("/data/new", "created")


def test_names_that_are_not_text(sandbox: Sandbox) -> None:
    events = sandbox.watch()
    os.close(os.open(os.fsencode(sandbox.work_dir) + b"/\xff\n", os.O_CREAT | os.O_WRONLY, 0o600))
    assert next(events) == FileEvent("\\xff\n", "created")


@pytest.mark.attack("RX-11")
def test_a_flood_is_one_overflow_event(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """We keep a bounded number of events, the kernel more; a late reader gets an overflow event."""
    monkeypatch.setattr(file_watch, "MOST_FOUND", 100)
    work = Path(sandbox.work_dir)
    kept = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if kept > 100_000:
        pytest.skip("this host's queue takes too long to fill")
    events = sandbox.watch(recursive=True)
    one, other = work / "one", work / "other"
    one.touch()
    for _ in range(kept // 4 + 4000):  # four records each, of which our buffers take some thousands
        one.rename(other)
        other.rename(one)
    assert next(event for event in events if event.kind == "overflow") == FileEvent(".", "overflow")
    (work / "sub").mkdir()
    assert ("sub", "created") in events_until_mark(sandbox, events)
    (work / "last").unlink()
    (work / "sub" / "seen").touch()
    assert ("sub/seen", "created") in events_until_mark(sandbox, events)


@pytest.mark.attack("RX-11")
def test_more_directories_than_can_be_watched(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "MOST_DIRECTORIES", 5)
    monkeypatch.setattr(file_watch, "MOST_DEEP", 3)
    monkeypatch.setattr(file_watch, "MOST_FOUND", 20)
    work = Path(sandbox.work_dir)
    events = sandbox.watch(recursive=True)
    for number in range(10):
        (work / f"d{number}").mkdir()
    seen = events_until_mark(sandbox, events)
    assert (".", "overflow") in seen and len(events._async._driver._watch._directories) == 5
    (work / "last").unlink()
    assert len(seen) < 30


def test_a_deep_tree_and_a_wide_directory(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(file_watch, "MOST_DEEP", 3)
    monkeypatch.setattr(file_watch, "MOST_FOUND", 20)
    work, made = Path(sandbox.work_dir), tmp_path / "made"
    (made / "1/2/3/4/5").mkdir(parents=True)
    wide = tmp_path / "wide"
    wide.mkdir()
    for number in range(30):
        (wide / str(number)).touch()
    events = sandbox.watch(recursive=True)
    made.rename(work / "made")
    wide.rename(work / "wide")
    seen = events_until_mark(sandbox, events)
    assert ("made/1/2/3", "created") in seen and ("made/1/2/3/4", "created") not in seen
    assert any(kind == "overflow" and path.startswith("made") for path, kind in seen)
    assert ("wide", "overflow") in seen


async def test_the_async_twin(tmp_path: Path) -> None:
    async with AsyncSandbox(tmp_path, guest_factory=Factory()) as sandbox:
        events = sandbox.watch()
        (tmp_path / "new").touch()
        async with asyncio.timeout(20):
            assert await anext(events) == FileEvent("new", "created")
            waiting = asyncio.ensure_future(_all(sandbox.watch()))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            waiting = asyncio.ensure_future(_all(sandbox.watch()))
            await asyncio.sleep(0.05)
            await sandbox.destroy()
            assert await waiting == []


async def test_a_recursive_watch_may_be_made_in_a_thread(tmp_path: Path) -> None:
    """A large tree would take the loop's time. New directories are watched before events are read."""
    async with (
        asyncio.timeout(20),
        AsyncSandbox(tmp_path, guest_factory=Factory()) as sandbox,
        await asyncio.to_thread(sandbox.watch, recursive=True) as events,
    ):
        (tmp_path / "sub" / "deep").mkdir(parents=True)
        while len(events._driver._watch._directories) < 3:
            await asyncio.sleep(0.01)
        (tmp_path / "last").touch()
        assert [event.path async for event in _before(events, LAST)] == ["sub", "sub/deep"]


async def _before(events: AsyncWatch, last: FileEvent) -> AsyncIterator[FileEvent]:
    async for event in events:
        if event == last:
            return
        yield event


async def _all(events: object) -> list[FileEvent]:
    return [event async for event in events]  # type: ignore[attr-defined]
