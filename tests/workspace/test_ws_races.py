"""Links that are swapped in and out while the host works: nothing outside is ever read, written or removed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import require

from warmcell.core.errors import PathTraversal
from warmcell.lifetime import own_modes
from warmcell.workspace import diff, files, openat2
from warmcell.workspace.copy import copy_tree
from warmcell.workspace.errors import WorkspaceError
from warmcell.workspace.remove import clear, remove
from warmcell.workspace.root import Root

ROUNDS = 2_000
CANARY = b"canary-of-the-host"


class Arena:
    """A workspace with a real file and a link out that trade places, as fast as a thread can swap them."""

    def __init__(self, base: Path, resolver: str) -> None:
        self.outside = base / "outside"
        self.inside = base / "inside"
        (self.inside / "real").mkdir(parents=True)
        (self.inside / "real/file").write_bytes(b"mine")
        self.outside.mkdir()
        (self.outside / "file").write_bytes(CANARY)
        (self.outside / "sub").mkdir()
        (self.inside / "link").symlink_to(self.outside)
        self.root = Root(self.inside, resolver=resolver)  # type: ignore[arg-type]

    def is_untouched(self) -> bool:
        return sorted(os.listdir(self.outside)) == ["file", "sub"] and (self.outside / "file").read_bytes() == CANARY

    @contextmanager
    def swapping(self, swap: Callable[[], None]) -> Iterator[None]:
        stop = threading.Event()

        def run() -> None:
            while not stop.is_set():
                with suppress(OSError):
                    swap()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def swap_directory(self) -> None:
        """`spot` is now a directory, now a link out."""
        for source in ("real", "link"):
            os.rename(self.inside / source, self.inside / "spot")
            os.rename(self.inside / "spot", self.inside / source)

    def swap_leaf(self) -> None:
        """`real/file` is now a file, now a link out."""
        os.symlink(self.outside / "file", self.inside / "next")
        os.rename(self.inside / "next", self.inside / "real/file")
        (self.inside / "next").write_bytes(b"mine")
        os.rename(self.inside / "next", self.inside / "real/file")


@pytest.fixture(params=["openat2", "walk"])
def arena(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arena]:
    if request.param == "openat2":
        require(openat2.is_available(), "this kernel has no openat2")
    made = Arena(tmp_path, request.param)
    yield made
    made.root.close()


def attempts(call: Callable[[], object], rounds: int = ROUNDS) -> Iterator[object]:
    for _ in range(rounds):
        with suppress(PathTraversal, WorkspaceError):
            yield call()


@pytest.mark.attack("WS-02")
def test_reading_through_a_directory_that_is_swapped(arena: Arena) -> None:
    with arena.swapping(arena.swap_directory):
        for data in attempts(lambda: files.read_file(arena.root, ("spot", "file"))):
            assert data == b"mine"
        for entries in attempts(lambda: files.list_dir(arena.root, ("spot",))):
            assert [entry.name for entry in entries] != ["file", "sub"]  # type: ignore[attr-defined]
    assert arena.is_untouched()


@pytest.mark.attack("WS-02")
def test_reading_a_leaf_that_is_swapped(arena: Arena) -> None:
    with arena.swapping(arena.swap_leaf):
        for data in attempts(lambda: files.read_file(arena.root, ("real", "file"))):
            assert data == b"mine"
    assert arena.is_untouched()


@pytest.mark.attack("WS-03")
@pytest.mark.attack("WS-04")
def test_writing_where_links_are_swapped(arena: Arena) -> None:
    with arena.swapping(arena.swap_directory):
        for _ in attempts(lambda: files.write_file(arena.root, ("spot", "file"), b"evil", parents=False)):
            pass
        for _ in attempts(lambda: files.write_file(arena.root, ("spot", "new", "file"), b"evil", parents=False), 500):
            pass
    with arena.swapping(arena.swap_leaf):
        for _ in attempts(lambda: files.write_file(arena.root, ("real", "file"), b"evil"), 500):
            pass
    assert arena.is_untouched()


@pytest.mark.attack("WS-03")
def test_making_and_removing_where_links_are_swapped(arena: Arena) -> None:
    with arena.swapping(arena.swap_directory):
        for _ in attempts(lambda: files.make_dir(arena.root, ("spot", "evil"), parents=False)):
            pass
        for _ in attempts(lambda: remove(arena.root, ("spot", "sub")), 500):
            pass
        for _ in attempts(lambda: remove(arena.root, ("spot", "file")), 500):
            pass
    assert arena.is_untouched()


@pytest.mark.attack("WS-02")
def test_whole_trees_while_links_are_swapped(arena: Arena, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    copy = Root(target)
    with arena.swapping(arena.swap_directory), arena.swapping(arena.swap_leaf):
        for changes in attempts(lambda: diff.changes_since({}, arena.root), 80):
            assert not any(change.path.endswith("/sub") for change in changes)  # type: ignore[attr-defined]
        for _ in attempts(lambda: (clear(copy), copy_tree(arena.root, copy)), 80):
            found = [path for path in target.rglob("*") if not path.is_symlink() and path.is_file()]
            assert CANARY not in [path.read_bytes() for path in found]
    copy.close()
    assert arena.is_untouched()


@pytest.mark.attack("WS-02")
def test_removing_a_tree_whose_directories_become_links(arena: Arena) -> None:
    with arena.swapping(arena.swap_directory):
        for number in range(100):
            (arena.inside / f"victim{number}/deep").mkdir(parents=True)
            os.symlink(arena.outside, arena.inside / f"victim{number}/out")
            remove(arena.root, (f"victim{number}",))
    assert arena.is_untouched()


def test_a_link_in_place_of_a_new_directory_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mode is corrected if the umask took permissions from the owner, or if a guest replaced it."""
    outside, new, look = tmp_path / "outside", tmp_path / "new", os.stat
    outside.mkdir(0o700)

    def swap(path: Any, **options: Any) -> os.stat_result:
        if path == "new":
            os.chmod(new, 0o077)
        state = look(path, **options)
        if path == "new":
            os.rmdir(new)
            os.symlink(outside, new)
        return state

    with Root(tmp_path) as root, monkeypatch.context() as patched:
        patched.setattr(os, "stat", swap)
        with pytest.raises(OSError, match="new"):
            own_modes.make_directory("new", dir_fd=root.fd)
    assert outside.stat().st_mode & 0o777 == 0o700
