"""Root and single files, once through openat2 and once through the walk."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

import pytest
from tests.helpers import open_descriptors

from warmcell.core.errors import ExecutionFailed, InvalidRequest, PathTraversal, SandboxDestroyed
from warmcell.workspace import files, openat2
from warmcell.workspace.errors import AlreadyExists, FileMissing, LimitExceeded, WorkspaceError, WrongKind
from warmcell.workspace.remove import remove
from warmcell.workspace.root import Root, to_workspace_error


def test_write_then_read(root: Root) -> None:
    files.write_file(root, ("a", "b", "c.txt"), b"hello")
    assert files.read_file(root, ("a", "b", "c.txt")) == b"hello"
    assert (Path(root.path) / "a/b/c.txt").read_bytes() == b"hello"


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../x", "{out}", "a\0"])
def test_names_that_are_none_are_refused_also_when_nobody_split_them(root: Root, tmp_path: Path, name: str) -> None:
    name = name.replace("{out}", str(tmp_path / "outside"))
    for parts in ((name,), ("a", name), (name, "a")):
        for call in (
            lambda parts=parts: files.read_file(root, parts),
            lambda parts=parts: files.write_file(root, parts, b""),
            lambda parts=parts: files.list_dir(root, parts),
            lambda parts=parts: files.stat_path(root, parts),
            lambda parts=parts: files.make_dir(root, parts, parents=True),
            lambda parts=parts: remove(root, parts),
        ):
            with pytest.raises(PathTraversal):
                call()
    assert os.listdir(root.path) == []


def test_a_missing_file_can_be_caught_by_its_python_name(root: Root) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        files.read_file(root, ("none",))
    assert isinstance(caught.value, FileMissing)
    assert caught.value.code == "sandbox.file_not_found"
    assert "'none' does not exist" in str(caught.value)


@pytest.mark.attack("WS-02")
@pytest.mark.attack("WS-03")
@pytest.mark.attack("WS-04")
@pytest.mark.parametrize(
    "path", ["leaf", "middle/secret", "middle/new", "middle/x/new", "chain/secret", "dangling", "magic"]
)
def test_links_are_refused_by_both_ways_of_opening(root: Root, tmp_path: Path, path: str) -> None:
    outside, inside = tmp_path / "outside", Path(root.path)
    outside.mkdir()
    (outside / "secret").write_text("canary")
    (inside / "leaf").symlink_to(outside / "secret")
    (inside / "middle").symlink_to("../outside")
    (inside / "chain").symlink_to("middle")
    (inside / "dangling").symlink_to(outside / "not-yet")
    (inside / "magic").symlink_to("/proc/self/cwd")
    parts = tuple(path.split("/"))
    for call in (
        lambda: files.read_file(root, parts),
        lambda: files.list_dir(root, parts),
        lambda: files.stat_path(root, parts),
        lambda: files.write_file(root, parts, b"evil"),
        lambda: files.make_dir(root, (*parts, "evil"), parents=True),
        lambda: remove(root, parts),
    ):
        with pytest.raises(PathTraversal):
            call()
    assert os.listdir(outside) == ["secret"]
    assert (outside / "secret").read_text() == "canary"


def test_parents_are_made_only_when_wanted(root: Root) -> None:
    with pytest.raises(FileMissing):
        files.write_file(root, ("a", "b"), b"", parents=False)
    assert os.listdir(root.path) == []


def test_a_directory_is_not_a_file_and_the_other_way_round(root: Root) -> None:
    files.write_file(root, ("d", "f"), b"x")
    for call in (
        lambda: files.read_file(root, ("d",)),
        lambda: files.write_file(root, ("d",), b""),
        lambda: files.list_dir(root, ("d", "f")),
        lambda: files.read_file(root, ("d", "f", "g")),
        lambda: files.write_file(root, ("d", "f", "g"), b""),
        lambda: files.read_file(root, ()),
    ):
        with pytest.raises(WrongKind):
            call()


def test_the_workspace_itself_is_neither_written_nor_removed(root: Root) -> None:
    for call in (
        lambda: files.write_file(root, (), b""),
        lambda: files.make_dir(root, ()),
        lambda: remove(root, ()),
    ):
        with pytest.raises(PathTraversal):
            call()


def test_an_overwritten_file_keeps_its_permissions_but_no_set_id_bit(root: Root) -> None:
    path = Path(root.path) / "tool"
    path.write_bytes(b"old")
    path.chmod(0o6755)
    files.write_file(root, ("tool",), b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


def test_a_write_replaces_a_hard_link_instead_of_writing_through_it(root: Root, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    os.link(outside, Path(root.path) / "linked")
    files.write_file(root, ("linked",), b"changed")
    assert outside.read_bytes() == b"precious"


def test_a_failed_write_leaves_no_temporary_file(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_all", fail)
    with pytest.raises(ExecutionFailed, match="No space left"):
        files.write_file(root, ("a",), b"x")
    assert os.listdir(root.path) == []


def test_a_file_larger_than_the_limit_is_refused(root: Root) -> None:
    files.write_file(root, ("a",), b"12345")
    assert files.read_file(root, ("a",), 5) == b"12345"
    with pytest.raises(LimitExceeded) as caught:
        files.read_file(root, ("a",), 4)
    assert caught.value.limit == 4


def test_a_file_that_grows_while_it_is_read_is_refused(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_file(root, ("a",), b"x" * 10)
    real_read = os.read

    def read_and_grow(fd: int, count: int) -> bytes:
        with (Path(root.path) / "a").open("ab") as more:
            more.write(b"y" * 10)
        return real_read(fd, count)

    monkeypatch.setattr(files.os, "read", read_and_grow)
    with pytest.raises(LimitExceeded):
        files.read_file(root, ("a",), 15)


def test_a_listing_is_sorted_and_says_what_is_what(root: Root) -> None:
    base = Path(root.path)
    (base / "b.txt").write_bytes(b"12")
    (base / "a").mkdir()
    (base / "link").symlink_to("b.txt")
    os.mkfifo(base / "pipe")
    (base / os.fsdecode(b"caf\xe9")).touch()
    assert [(e.name, e.is_dir, e.is_file, e.size, e.is_symlink) for e in files.list_dir(root, ())] == [
        ("a", True, False, 0, False),
        ("b.txt", False, True, 2, False),
        ("caf\\xe9", False, True, 0, False),
        ("link", False, False, 0, True),
        ("pipe", False, False, 0, False),
    ]


def test_stat_and_mkdir(root: Root) -> None:
    files.make_dir(root, ("d",))
    with pytest.raises(AlreadyExists):
        files.make_dir(root, ("d",))
    files.make_dir(root, ("d", "e", "f"), parents=True)
    files.make_dir(root, ("d", "e", "f"), parents=True)
    files.write_file(root, ("d", "x"), b"123")
    assert files.stat_path(root, ("d",)).is_dir
    assert files.stat_path(root, ("d", "x")).size == 3
    assert files.stat_path(root, ()).is_dir


@pytest.mark.parametrize("kind", ["fifo", "socket", pytest.param("device", marks=pytest.mark.root)])
def test_special_files_are_refused_at_once(root: Root, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = Path(root.path)
    if kind == "fifo":
        os.mkfifo(base / "x")
    elif kind == "socket":
        monkeypatch.chdir(base)  # the path of a socket may have 107 bytes only
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("x")
    else:
        os.mknod(base / "x", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    for call in (
        lambda: files.read_file(root, ("x",)),
        lambda: files.write_file(root, ("x",), b""),
        lambda: files.stat_path(root, ("x",)),
        lambda: remove(root, ("x",)),
    ):
        with pytest.raises((PathTraversal, WorkspaceError)):
            call()
    assert (base / "x").lstat()


def test_every_method_of_a_closed_root_is_refused(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.close()
    root.close()
    with pytest.raises(SandboxDestroyed):
        files.read_file(root, ("a",))
    with pytest.raises(SandboxDestroyed):
        files.list_dir(root, ())


@pytest.mark.parametrize("bad", ["missing", "file"])
def test_a_root_must_be_a_directory(tmp_path: Path, bad: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match="work_dir"):
        Root(tmp_path / bad)


def test_the_walk_takes_over_where_openat2_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openat2, "is_available", lambda: False)
    monkeypatch.setattr(openat2, "open_beneath", lambda *_: pytest.fail("openat2 was used"))
    root = Root(tmp_path)
    files.write_file(root, ("a", "b"), b"x")
    assert files.read_file(root, ("a", "b")) == b"x"
    root.close()


def test_nothing_leaks_a_descriptor(root: Root) -> None:
    (Path(root.path) / "link").symlink_to(os.path.dirname(root.path))
    os.mkfifo(Path(root.path) / "pipe")
    before = open_descriptors() if os.path.exists("/proc/self/fd") else None
    for _ in range(50):
        for parts in (("link",), ("link", "x"), ("pipe",), ("none",), ("a", "b")):
            for call in (files.read_file, files.list_dir, lambda r, p: files.write_file(r, p, b"x")):
                with contextlib.suppress(PathTraversal, WorkspaceError):
                    call(root, parts)  # type: ignore[operator]
    assert before is None or open_descriptors() <= before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_or_broken_disk_is_the_hosts_fault(number: int) -> None:
    error = to_workspace_error(OSError(number, os.strerror(number)), ("a", "b"))
    assert error.fault == "host" and "a/b" in error.message


def test_a_missing_file_is_the_callers_fault() -> None:
    assert to_workspace_error(OSError(errno.ENOENT, "gone"), ("a",)).fault == "caller"
