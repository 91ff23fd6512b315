"""WASI preview 1: a guest sees its own directories and nothing else."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.wasm import guests
from tests.wasm.conftest import run_once, take_limits
from tests.wasm.probe import (
    BADF,
    CREATE,
    DIRECTORY,
    EXCLUSIVE,
    EXIST,
    FOLLOW,
    INVAL,
    NOENT,
    NOTDIR,
    NOTEMPTY,
    PERM,
    READ,
    SUCCESS,
    TRUNCATE,
    WRITE,
    At,
    Probe,
)

from warmcell.backends.wasm.run_request import HostDirectory, Preopen, RunRequest, resolve_preopens, source_from_code
from warmcell.backends.wasm.supervisor import Supervisor
from warmcell.core.errors import EnforcerFailed, ExecutionFailed, InvalidRequest
from warmcell.core.types import MIB, ExecResult
from warmcell.guest.wasm.protocol import RunLimits

CANARY = b"canary of the test, outside of every preopen"
#: The address of a descriptor that a call opened.
OPENED = 1024
Execute = Callable[..., tuple[list[int], list[bytes]]]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A host directory with a writable preopen `in`, a read-only one `ro`, and a canary beside them."""
    for name in ("in", "ro", "in/sub"):
        (tmp_path / name).mkdir()
    (tmp_path / "canary").write_bytes(CANARY)
    (tmp_path / "in" / "file").write_bytes(b"content")
    (tmp_path / "ro" / "file").write_bytes(b"read only")
    return tmp_path


def _run(supervisor: Supervisor, world: Path, code: str, **fields: Any) -> ExecResult:
    preopens = (Preopen(world / "in", "/in", True), Preopen(world / "ro", "/ro", False))
    limits = take_limits(fields, timeout=20, memory_limit_mb=64)
    request = RunRequest(("probe",), limits, preopens=preopens, **fields)
    return run_once(supervisor, source_from_code(code), request)


@pytest.fixture
def execute(supervisor: Supervisor, world: Path) -> Execute:
    def execute(probe: Probe) -> tuple[list[int], list[bytes]]:
        result = _run(supervisor, world, probe.wat())
        assert result.exit_code == 0, result.stderr
        return probe.decode(result.stdout_bytes)

    return execute


def test_preopens_start_at_descriptor_3_and_say_their_names(execute: Execute) -> None:
    probe = Probe()
    for descriptor in (3, 4, 5):
        probe.call("fd_prestat_get", descriptor, 1024 + 8 * descriptor)
    probe.call("fd_prestat_dir_name", 3, 1200, 3)
    probe.call("fd_prestat_dir_name", 4, 1203, 3)
    probe.dump(1200, 6)
    errnos, (names,) = execute(probe)
    assert errnos == [SUCCESS, SUCCESS, BADF, SUCCESS, SUCCESS]
    assert names == b"/in/ro"


@pytest.mark.attack("WA-10")
@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../canary",
        "sub/../../canary",
        "/canary",
        "{world}/canary",
        "../in/../canary",
        "./../canary",
        "../../../../../../../../../etc/passwd",
    ],
)
def test_no_path_leads_out(execute: Execute, world: Path, path: str) -> None:
    probe = Probe()
    probe.open(3, path.format(world=world), OPENED)
    probe.open(3, path.format(world=world), OPENED, flags=CREATE, rights=WRITE)
    probe.call("path_filestat_get", 3, FOLLOW, *probe.text(path.format(world=world)), 1104)
    probe.call("path_unlink_file", 3, *probe.text(path.format(world=world)))
    errnos, _ = execute(probe)
    assert all(errno in (PERM, NOENT) for errno in errnos), errnos
    assert (world / "canary").read_bytes() == CANARY


@pytest.mark.attack("WA-10")
@pytest.mark.parametrize("target", ["../canary", "{world}/canary", "sub/../../canary", "/etc/passwd"])
def test_links_planted_by_the_host_do_not_lead_out(execute: Execute, world: Path, target: str) -> None:
    (world / "in" / "link").symlink_to(target.format(world=world))
    (world / "in" / "up").symlink_to("..")
    probe = Probe()
    probe.open(3, "link", OPENED)
    probe.open(3, "link", OPENED, flags=TRUNCATE, rights=WRITE)
    probe.open(3, "up/canary", OPENED)
    probe.open(3, "up/new", OPENED, flags=CREATE, rights=WRITE)
    errnos, _ = execute(probe)
    assert all(errno in (PERM, NOENT) for errno in errnos), errnos
    assert (world / "canary").read_bytes() == CANARY
    assert not (world / "new").exists()


@pytest.mark.attack("WA-10")
def test_links_made_by_the_guest_do_not_lead_out(execute: Execute, world: Path) -> None:
    probe = Probe()
    probe.call("path_symlink", *probe.text(str(world / "canary")), 3, *probe.text("absolute"))
    probe.call("path_symlink", *probe.text("../canary"), 3, *probe.text("relative"))
    probe.open(3, "absolute", OPENED)
    probe.open(3, "relative", OPENED)
    errnos, _ = execute(probe)
    assert errnos[0] == PERM
    assert all(errno in (PERM, NOENT) for errno in errnos[2:]), errnos
    assert (world / "canary").read_bytes() == CANARY


@pytest.mark.attack("WA-10")
def test_renames_and_links_stay_inside(execute: Execute, world: Path) -> None:
    probe = Probe()
    probe.call("path_rename", 3, *probe.text("file"), 3, *probe.text("../stolen"))
    probe.call("path_rename", 3, *probe.text("../canary"), 3, *probe.text("stolen"))
    probe.call("path_link", 3, 0, *probe.text("../canary"), 3, *probe.text("stolen"))
    probe.call("path_rename", 3, *probe.text("file"), 4, *probe.text("moved"))
    probe.call("path_link", 3, 0, *probe.text("file"), 4, *probe.text("linked"))
    probe.call("path_rename", 4, *probe.text("file"), 3, *probe.text("taken"))
    errnos, _ = execute(probe)
    assert all(errnos), errnos
    assert sorted(os.listdir(world)) == ["canary", "in", "ro"]
    assert os.listdir(world / "ro") == ["file"]
    assert sorted(os.listdir(world / "in")) == ["file", "sub"]


@pytest.mark.attack("WA-10")
def test_a_read_only_preopen_is_read_only(execute: Execute, world: Path) -> None:
    probe = Probe()
    probe.open(4, "file", OPENED, rights=WRITE)
    probe.open(4, "file", OPENED, flags=TRUNCATE, rights=READ | WRITE)
    probe.open(4, "new", OPENED, flags=CREATE, rights=READ | WRITE)
    probe.call("path_create_directory", 4, *probe.text("dir"))
    probe.call("path_unlink_file", 4, *probe.text("file"))
    probe.call("path_symlink", *probe.text("file"), 4, *probe.text("link"))
    probe.call("path_filestat_set_times", 4, 0, *probe.text("file"), 0, 0, 10)
    probe.call("path_rename", 4, *probe.text("file"), 4, *probe.text("renamed"))
    probe.open(4, "file", OPENED)
    probe.call("fd_filestat_set_size", At(OPENED), 0)
    before = (world / "ro" / "file").stat().st_mtime_ns
    errnos, _ = execute(probe)
    assert errnos[8] == SUCCESS
    assert all(errnos[:8]) and errnos[9], errnos
    assert (world / "ro" / "file").read_bytes() == b"read only"
    assert (world / "ro" / "file").stat().st_mtime_ns == before
    assert os.listdir(world / "ro") == ["file"]


def test_reading_seeking_and_telling(execute: Execute) -> None:
    probe = Probe()
    probe.open(3, "file", OPENED)
    probe.call("fd_seek", At(OPENED), 3, 0, 1104)
    probe.vector(1112, 1200, 100)
    probe.call("fd_read", At(OPENED), 1112, 1, 1120)
    probe.call("fd_seek", At(OPENED), -2, 2, 1136)
    probe.call("fd_tell", At(OPENED), 1144)
    probe.call("fd_seek", At(OPENED), -100, 0, 1152)
    probe.call("fd_close", At(OPENED))
    probe.call("fd_close", At(OPENED))
    probe.dump(1200, 4)
    probe.dump(1120, 4)
    probe.dump(1144, 8)
    errnos, (text, count, position) = execute(probe)
    assert errnos == [SUCCESS, SUCCESS, SUCCESS, SUCCESS, SUCCESS, INVAL, SUCCESS, BADF]
    assert text == b"tent"
    assert (int.from_bytes(count, "little"), int.from_bytes(position, "little")) == (4, 5)


def test_files_are_written(execute: Execute, world: Path) -> None:
    probe = Probe()
    probe.open(3, "new", OPENED, flags=CREATE | EXCLUSIVE, rights=WRITE)
    address, length = probe.text("written by the guest")
    probe.vector(1112, address, length)
    probe.call("fd_write", At(OPENED), 1112, 1, 1120)
    probe.open(3, "new", 1028, flags=CREATE | EXCLUSIVE, rights=WRITE)
    probe.open(3, "file", 1032, flags=TRUNCATE, rights=WRITE)
    errnos, _ = execute(probe)
    assert errnos == [SUCCESS, SUCCESS, EXIST, SUCCESS]
    assert (world / "in" / "new").read_bytes() == b"written by the guest"
    assert (world / "in" / "file").read_bytes() == b""


def test_directories_are_listed_with_cookies(execute: Execute, world: Path) -> None:
    for number in range(5):
        (world / "in" / f"item{number}").touch()
    probe = Probe()
    probe.call("fd_readdir", 3, 4096, 4000, 0, 1104)
    probe.dump(1104, 4)
    probe.dump(4096, 4000)
    errnos, (used, listing) = execute(probe)
    names, at = [], 0
    while at < int.from_bytes(used, "little"):
        _next, _inode, length, _kind = struct.unpack_from("<QQII", listing, at)
        names.append(listing[at + 24 : at + 24 + length].decode())
        at += 24 + length
    assert errnos == [SUCCESS]
    assert sorted(names) == [".", "..", "file", *(f"item{number}" for number in range(5)), "sub"]


def test_directories_are_made_and_removed(execute: Execute, world: Path) -> None:
    (world / "in" / "sub" / "inner").touch()
    probe = Probe()
    probe.call("path_create_directory", 3, *probe.text("made"))
    probe.call("path_create_directory", 3, *probe.text("made"))
    probe.call("path_remove_directory", 3, *probe.text("sub"))
    probe.call("path_remove_directory", 3, *probe.text("file"))
    probe.call("path_unlink_file", 3, *probe.text("missing"))
    probe.open(3, "file", OPENED, flags=DIRECTORY)
    probe.open(3, "made", OPENED, flags=DIRECTORY)
    errnos, _ = execute(probe)
    assert errnos == [SUCCESS, EXIST, NOTEMPTY, NOTDIR, NOENT, NOTDIR, SUCCESS]
    assert (world / "in" / "made").is_dir()


def test_links_inside_work(execute: Execute, world: Path) -> None:
    probe = Probe()
    probe.call("path_symlink", *probe.text("file"), 3, *probe.text("sub/../link"))
    probe.call("path_readlink", 3, *probe.text("link"), 1200, 100, 1104)
    probe.open(3, "link", OPENED)
    probe.call("path_link", 3, 0, *probe.text("file"), 3, *probe.text("hard"))
    probe.dump(1200, 4)
    errnos, (target,) = execute(probe)
    assert errnos == [SUCCESS] * 4
    assert target == b"file"
    assert (world / "in" / "hard").samefile(world / "in" / "file")


def test_there_are_no_sockets(execute: Execute) -> None:
    probe = Probe()
    for descriptor in (0, 1, 3, 5):
        probe.call("sock_accept", descriptor, 0, 1104)
        probe.call("sock_send", descriptor, 1112, 1, 0, 1104)
    errnos, _ = execute(probe)
    assert all(errnos)


def test_poll_answers_for_descriptors_and_refuses_nonsense(execute: Execute) -> None:
    probe = Probe()
    probe.call("poll_oneoff", 1024, 2048, 0, 1000)
    probe.call("poll_oneoff", -16, 2048, 1, 1000)
    probe.call("poll_oneoff", 1024, 2048, 1_000_000, 1000)
    probe.store(1024 + 8, 1)  # a subscription to reading from descriptor 0
    probe.call("poll_oneoff", 1024, 20480, 1, 1000)
    probe.dump(1000, 4)
    errnos, (count,) = execute(probe)
    assert errnos == [INVAL, 21, INVAL, SUCCESS]
    assert int.from_bytes(count, "little") == 1


def test_a_file_can_not_outgrow_its_limit(supervisor: Supervisor, world: Path) -> None:
    probe = Probe()
    probe.open(3, "big", OPENED, flags=CREATE, rights=WRITE)
    probe.vector(1112, 8192, 60_000)
    for _ in range(4):
        probe.call("fd_write", At(OPENED), 1112, 1, 1120)
    result = _run(supervisor, world, probe.wat(), file_bytes=100_000)
    assert result.enforced.disk == "rlimit per file"
    assert (world / "in" / "big").stat().st_size == 100_000


def test_a_preopen_must_be_a_directory(supervisor: Supervisor, world: Path) -> None:
    for path in (world / "canary", world / "missing"):
        request = RunRequest(("x",), RunLimits(5, 64 * MIB), preopens=(Preopen(path, "/x"),))
        with pytest.raises(InvalidRequest, match="preopens"):
            run_once(supervisor, source_from_code(guests.TRAP), request)


@pytest.mark.attack("WA-10")
def test_a_preopen_that_is_swapped_while_the_run_starts_is_refused(
    supervisor: Supervisor, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from warmcell.backends.wasm import supervisor as module

    real = module.resolve_preopens

    def swap(preopens: object, known: object) -> object:
        opened = real(preopens, known)  # type: ignore[arg-type]
        (world / "in").rename(world / "was in")
        (world / "in").mkdir()
        return opened

    monkeypatch.setattr(module, "resolve_preopens", swap)
    with pytest.raises((ExecutionFailed, EnforcerFailed), match=r"replaced|not what it was"):
        _run(supervisor, world, guests.TRAP)


@pytest.mark.attack("WA-10")
def test_a_directory_that_is_known_is_compared_every_time(tmp_path: Path) -> None:
    known: dict[Preopen, HostDirectory] = {}
    work = tmp_path / "work"
    work.mkdir()
    preopen = Preopen(work, "/work")
    first = resolve_preopens([preopen], known)
    assert resolve_preopens([preopen], known) == first
    work.rename(tmp_path / "was work")
    with pytest.raises(InvalidRequest, match="preopens"):
        resolve_preopens([preopen], known)
    work.symlink_to(tmp_path / "was work")
    assert resolve_preopens([preopen], known)[0].host_path == str(tmp_path / "was work")
    work.unlink()
    work.mkdir()
    assert resolve_preopens([preopen], known)[0].inode == work.stat().st_ino != first[0].inode


@pytest.mark.parametrize("bad", [("a\0b",), ("",)[:0]], ids=["NUL", "empty"])
def test_argv_is_checked(bad: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="argv"):
        RunRequest(bad, RunLimits(5))
