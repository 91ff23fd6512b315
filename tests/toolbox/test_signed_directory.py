"""Signed files: written atomically, verified by their MAC, readable on a read-only disk."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

import pytest

from warmcell.toolbox import signed_directory
from warmcell.toolbox.signed_directory import SignedDirectory, Tampered, Unusable


@pytest.fixture
def directory(tmp_path: Path) -> SignedDirectory:
    return SignedDirectory(tmp_path / "private" / "kept")


def write(directory: SignedDirectory, name: str, content: bytes, facts: dict[str, object] | None = None) -> None:
    source = os.memfd_create("content")
    try:
        os.write(source, content)
        directory.write(name, source, facts or {})
    finally:
        os.close(source)


def read(directory: SignedDirectory, name: str) -> bytes | None:
    file = directory.read(name)
    if file is None:
        return None
    try:
        return os.pread(file.descriptor, 1 << 20, 0)
    finally:
        file.close()


@pytest.mark.parametrize("content", [b"", b"x", b"line\nline\n" * 1000])
def test_written_files_can_be_read(directory: SignedDirectory, content: bytes) -> None:
    write(directory, "a", content, {"is_good": True})
    assert read(directory, "a") == content
    file = directory.read("a")
    assert file is not None
    assert file.facts == {"is_good": True}
    file.close()
    assert read(directory, "b") is None


def test_another_process_reads_it_too(directory: SignedDirectory) -> None:
    write(directory, "a", b"content")
    assert read(SignedDirectory(directory.path), "a") == b"content"


def test_it_is_read_where_sealed_files_cannot_be_mapped_as_shared(
    directory: SignedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before Linux 6.7."""
    map_file = mmap.mmap

    def map_unless_sealed(descriptor: int, size: int, flags: int = mmap.MAP_SHARED, prot: int = 0) -> mmap.mmap:
        if flags & mmap.MAP_SHARED and fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return map_file(descriptor, size, flags=flags, prot=prot)

    monkeypatch.setattr(mmap, "mmap", map_unless_sealed)
    write(directory, "a", b"content")
    assert read(directory, "a") == b"content"


@pytest.mark.attack("S2-40")
@pytest.mark.parametrize("change", ["content", "facts", "name", "mac", "nothing", "cut"])
def test_a_changed_file_is_refused(directory: SignedDirectory, change: str) -> None:
    write(directory, "a", b"content", {"entry": "run"})
    path = Path(directory.path) / "a.signed"
    data = path.read_bytes()
    changed = {
        "content": data.replace(b"content", b"CONTENT"),
        "facts": data.replace(b"run", b"RUN"),
        "name": data,
        "mac": data.replace(b'"mac":"', b'"mac":"0'),
        "nothing": b"",
        "cut": data[:-1],
    }[change]
    name = "b" if change == "name" else "a"
    (Path(directory.path) / f"{name}.signed").write_bytes(changed)
    with pytest.raises(Tampered):
        directory.read(name)


def test_a_disk_that_is_full_leaves_no_part_of_a_file(
    directory: SignedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(directory, "a", b"old")
    monkeypatch.setattr(signed_directory.os, "replace", _full)
    monkeypatch.setattr(signed_directory._write_new, "__defaults__", (_full,))
    with pytest.raises(OSError, match="No space"):
        write(directory, "a", b"new")
    assert sorted(item.name for item in Path(directory.path).iterdir()) == ["a.signed", "secret"]
    assert read(directory, "a") == b"old"


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.attack("S2-40")
def test_a_temporary_file_that_somebody_prepared_is_not_used(
    directory: SignedDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    monkeypatch.setattr(signed_directory.os, "urandom", bytes)
    (Path(directory.path) / f".a.signed.{bytes(8).hex()}").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write(directory, "a", b"content")
    assert victim.read_text() == "untouched"


def test_reading_needs_no_right_to_write(directory: SignedDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk that is mounted read-only."""
    write(directory, "a", b"content")

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(signed_directory.os, "utime", read_only)
    assert read(SignedDirectory(directory.path), "a") == b"content"


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_a_directory_that_others_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(Unusable):
        SignedDirectory(directory)


def test_pruning_removes_the_oldest_and_unfinished_files(directory: SignedDirectory) -> None:
    for at, name in enumerate("abc"):
        write(directory, name, bytes(1000))
        os.utime(Path(directory.path) / f"{name}.signed", (at, at))
    (Path(directory.path) / ".d.signed.0123").write_bytes(b"half")
    os.utime(Path(directory.path) / ".d.signed.0123", (0, 0))
    (Path(directory.path) / ".e.signed.0123").write_bytes(b"another process is writing this")
    directory.prune(2 * (Path(directory.path) / "a.signed").stat().st_size)
    assert sorted(item.name for item in Path(directory.path).iterdir()) == [
        ".e.signed.0123",
        "b.signed",
        "c.signed",
        "secret",
    ]
