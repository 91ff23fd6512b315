"""WS-10 and WS-12: archives that would write elsewhere, make links, or burst. Nothing of them is written."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcell.core.errors import PathTraversal, SandboxError
from warmcell.workspace.archive.members import ArchiveLimits
from warmcell.workspace.errors import ArchiveRejected, LimitExceeded, WrongKind
from warmcell.workspace.transfer import read_archive
from warmcell.workspace.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    (tmp_path / "ws").mkdir()
    made = Workspace(tmp_path / "ws")
    yield made
    made.close()


def tar_of(*members: tarfile.TarInfo | tuple[str, bytes], fmt: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=fmt) as tar:
        for member in members:
            info, data = (
                (member, b"") if isinstance(member, tarfile.TarInfo) else (tarfile.TarInfo(member[0]), member[1])
            )
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, mode
    return made


def zip_of(*members: tuple[str, bytes], attributes: int = 0) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = attributes
            archive.writestr(entry, data)
    return buffer.getvalue()


GOOD = [("a.txt", b"A"), ("d/e/f.txt", b"F" * 5000), ("ü/\u202ename", b"odd")]


@pytest.mark.parametrize("fmt", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_a_plain_tar_is_unpacked(workspace: Workspace, fmt: int, pack: Callable[[bytes], bytes]) -> None:
    tar = tar_of(info("d", tarfile.DIRTYPE), *GOOD, ("n" * 90 + "/" + "m" * 90, b"long"), fmt=fmt)
    done = workspace.upload(pack(tar), "in", extract=True)
    assert (done.files, done.total_bytes) == (4, 1 + 5000 + 3 + 4)
    for name, data in [*GOOD, ("n" * 90 + "/" + "m" * 90, b"long")]:
        assert workspace.read_file(f"in/{name}") == data


def test_a_tar_that_git_would_write_with_a_global_header_is_unpacked(workspace: Workspace) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "0" * 40}) as tar:
        tar.addfile(info("run.sh", mode=0o755), io.BytesIO())
    workspace.upload(buffer.getvalue(), extract=True)
    assert workspace.stat("run.sh").mode == 0o755


def test_a_plain_zip_is_unpacked(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(zip_of(("dir/", b""), *GOOD))
    assert workspace.upload(tmp_path / "x.zip", extract=True).files == 3
    for name, data in GOOD:
        assert workspace.read_file(name) == data
    assert workspace.stat("dir").is_dir


def test_what_is_there_is_overwritten_and_the_rest_stays(workspace: Workspace) -> None:
    workspace.write_file("a.txt", "old")
    workspace.write_file("mine", "mine")
    workspace.upload(tar_of(*GOOD), extract=True)
    assert workspace.read_text("a.txt") == "A"
    assert workspace.read_text("mine") == "mine"


BAD_NAMES = [
    "../x",
    "a/../../x",
    "/tmp/warmcell-evil",
    "//tmp/warmcell-evil",
    "..",
    "a/..",
    "~/x",
    "C:\\x",
    "C:/x",
    "a\\..\\x",
    "x" * 300,
    "a\nb/../c",
]
BAD_TARS: dict[str, tuple[object, ...]] = {
    **{f"name {name[:12]!a}": (("ok.txt", b"1"), (name, b"2")) for name in BAD_NAMES},
    "symlink": (("ok.txt", b"1"), info("link", tarfile.SYMTYPE, "/tmp"), ("link/warmcell-evil", b"2")),
    "symlink inside": (info("link", tarfile.SYMTYPE, "ok.txt"),),
    "hard link out": (("ok.txt", b"1"), info("hard", tarfile.LNKTYPE, "/etc/passwd")),
    "hard link in": (("ok.txt", b"1"), info("hard", tarfile.LNKTYPE, "ok.txt")),
    "device": (("ok.txt", b"1"), info("dev", tarfile.CHRTYPE)),
    "block device": (info("dev", tarfile.BLKTYPE),),
    "fifo": (("ok.txt", b"1"), info("pipe", tarfile.FIFOTYPE)),
    "contiguous": (info("cont", tarfile.CONTTYPE),),
    "sparse": (info("sparse", tarfile.GNUTYPE_SPARSE),),
    "setuid": (("ok.txt", b"1"), info("su", mode=0o4755)),
    "setgid": (info("sg", mode=0o2755),),
    "twice": (("ok.txt", b"1"), ("ok.txt", b"2")),
    "twice in other words": (("a/b", b"1"), ("a/./b", b"2")),
    "file as parent": (("ok.txt", b"1"), ("ok.txt/x", b"2")),
    "parent after child": (("d/x", b"1"), ("d", b"2")),
    "file and directory": (("d", b"1"), info("d", tarfile.DIRTYPE)),
    "the workspace as a file": ((".", b"1"),),
}


@pytest.mark.attack("WS-10")
@pytest.mark.parametrize("fmt", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("members", BAD_TARS.values(), ids=BAD_TARS.keys())
def test_a_bad_tar_is_rejected_whole(
    workspace: Workspace, tmp_path: Path, members: tuple[object, ...], fmt: int
) -> None:
    with pytest.raises(ArchiveRejected):
        workspace.upload(tar_of(*members, fmt=fmt), extract=True)  # type: ignore[arg-type]
    assert os.listdir(workspace.host_path) == []
    assert os.listdir(tmp_path) == ["ws"]


@pytest.mark.attack("WS-10")
def test_a_tar_does_not_write_through_a_link_that_is_there_already(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    os.symlink(tmp_path / "out", f"{workspace.host_path}/d")
    os.symlink(tmp_path / "out/file", f"{workspace.host_path}/leaf")
    for name in ("d/x", "leaf"):
        with pytest.raises(PathTraversal):
            workspace.upload(tar_of(("first", b"1"), (name, b"2")), extract=True)
    assert sorted(os.listdir(workspace.host_path)) == ["d", "leaf"]
    assert os.listdir(tmp_path / "out") == []


def test_a_collision_is_found_before_anything_is_written(workspace: Workspace) -> None:
    workspace.mkdir("d")
    with pytest.raises(WrongKind):
        workspace.upload(tar_of(("first", b"1"), ("d", b"2")), extract=True)
    assert os.listdir(workspace.host_path) == ["d"]


@pytest.mark.attack("WS-10")
def test_nothing_is_written_of_an_archive_for_which_there_is_no_room(tmp_path: Path) -> None:
    large = b"x" * (600 << 10)
    workspace = Workspace(tmp_path, disk_mb=1)
    try:
        workspace.write_file("a", large)
        with pytest.raises(LimitExceeded):
            workspace.upload(tar_of(("a", b"new"), ("b", large), ("c", large)), extract=True)
        assert workspace.read_file("a") == large and os.listdir(tmp_path) == ["a"]
        workspace.upload(tar_of(("a", b"new"), ("b", large)), extract=True)  # takes the place of the old one
        assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    finally:
        workspace.close()


def test_a_million_members_are_refused_early(workspace: Workspace) -> None:
    block = tar_of(("x", b""))[:512]
    started = time.process_time()
    with pytest.raises(ArchiveRejected, match=r"entries|twice|more than"):
        workspace.upload(gzip.compress(block * 1_000_000, 1), extract=True)
    limits = ArchiveLimits(entries=50)
    with pytest.raises(ArchiveRejected, match="50 entries"):
        read_archive(tar_of(*((str(number), b"") for number in range(51))), limits)
    assert time.process_time() - started < 20
    assert os.listdir(workspace.host_path) == []


@pytest.mark.attack("WS-10")
@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_bomb_is_stopped_while_it_unpacks(workspace: Workspace, pack: Callable[[bytes], bytes]) -> None:
    bomb = pack(tar_of(("zeros", bytes(48 * 1024 * 1024))))
    assert len(bomb) < 512 * 1024
    with pytest.raises(ArchiveRejected, match="times its size"):
        workspace.upload(bomb, extract=True)
    with pytest.raises(ArchiveRejected, match="more than"):
        read_archive(bomb, ArchiveLimits(total_bytes=1024, ratio=10**9))
    assert os.listdir(workspace.host_path) == []


@pytest.mark.attack("WS-10")
def test_headers_that_lie_are_rejected(workspace: Workspace) -> None:
    tar = bytearray(tar_of(("a", b"x" * 600)))
    cut, negative, checksum = tar[:700], bytearray(tar), bytearray(tar)
    negative[124:136] = b"\xff" * 12
    _fix_checksum(negative)
    checksum[0] ^= 1
    for bad in (
        cut,
        negative,
        checksum,
        b"",
        b"no archive",
        b"\x1f\x8b broken",
        b"BZh broken",
        b"PK\3\4",
        b"\xfd7zXZ\0x",
    ):
        with pytest.raises(ArchiveRejected):
            workspace.upload(bytes(bad), extract=True)
    assert os.listdir(workspace.host_path) == []


def _fix_checksum(tar: bytearray) -> None:
    tar[148:156] = b" " * 8
    tar[148:156] = b"%06o\0 " % sum(tar[:512])


@pytest.mark.attack("WS-10")
@pytest.mark.parametrize("headers", [{"path": "../x"}, {"GNU.sparse.major": "1"}, {"linkpath": "/etc"}, {"size": "-5"}])
def test_extended_headers_cannot_say_what_headers_may_not(workspace: Workspace, headers: dict[str, str]) -> None:
    member = info("ok")
    member.pax_headers = headers
    tar = member.tobuf(tarfile.PAX_FORMAT) + bytes(1024)
    with pytest.raises(ArchiveRejected):
        workspace.upload(tar, extract=True)
    assert os.listdir(workspace.host_path) == []


BAD_ZIPS = {
    **{
        f"name {name[:12]!a}": zip_of(("ok.txt", b"1"), (name, b"2"))
        for name in BAD_NAMES
        if "\\" not in name or os.sep == "/"
    },
    "symlink": zip_of(("ok.txt", b"1"), ("link", b"/etc/passwd"), attributes=(stat.S_IFLNK | 0o777) << 16),
    "fifo": zip_of(("pipe", b""), attributes=(stat.S_IFIFO | 0o666) << 16),
    "setuid": zip_of(("su", b""), attributes=(stat.S_IFREG | 0o4755) << 16),
    "directory with content": zip_of(("d/", b"content")),
    "directory by mode": zip_of(("d", b""), attributes=(stat.S_IFDIR | 0o755) << 16),
    "file as parent": zip_of(("a", b"1"), ("a/b", b"2")),
}


@pytest.mark.attack("WS-12")
@pytest.mark.parametrize("raw", BAD_ZIPS.values(), ids=BAD_ZIPS.keys())
def test_a_bad_zip_is_rejected_whole(workspace: Workspace, tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(ArchiveRejected):
        workspace.upload(raw, extract=True)
    assert os.listdir(workspace.host_path) == []
    assert os.listdir(tmp_path) == ["ws"]


@pytest.mark.attack("WS-12")
def test_a_name_twice_in_a_zip_is_rejected(workspace: Workspace) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        raw = zip_of(("a", b"1"), ("a", b"2"))
    with pytest.raises(ArchiveRejected, match="twice"):
        workspace.upload(raw, extract=True)


@pytest.mark.attack("WS-12")
def test_members_that_overlap_are_rejected(workspace: Workspace) -> None:
    """The bomb of overlapping members: many directory entries, one piece of packed data."""
    with pytest.raises(ArchiveRejected, match=r"overlaps|another name"):
        workspace.upload(_overlapping(zip_of(("aa", bytes(1000)), ("ab", bytes(1000)))), extract=True)
    assert os.listdir(workspace.host_path) == []


def _overlapping(raw: bytes) -> bytes:
    """Makes the second entry of the directory point at the data of the first, under the first one's name."""
    directory = struct.unpack_from("<L", raw, len(raw) - 6)[0]
    entry = raw[directory : directory + 48]
    second = bytearray(entry)
    changed = bytearray(raw)
    changed[directory + 48 : directory + 96] = second
    return bytes(changed)


@pytest.mark.attack("WS-12")
def test_a_zip_bomb_is_refused_by_what_it_says_and_by_what_it_does(workspace: Workspace) -> None:
    honest = zip_of(("zeros", bytes(48 * 1024 * 1024)))
    with pytest.raises(ArchiveRejected, match="times its size"):
        workspace.upload(honest, extract=True)
    directory = struct.unpack_from("<L", honest, len(honest) - 6)[0]
    lying = bytearray(honest)
    struct.pack_into("<L", lying, directory + 24, 10)
    with pytest.raises(ArchiveRejected, match="another size or checksum"):
        workspace.upload(bytes(lying), extract=True)
    assert os.listdir(workspace.host_path) == []


@pytest.mark.attack("WS-12")
def test_a_zip_whose_parts_disagree_is_rejected(workspace: Workspace) -> None:
    raw = zip_of(("name", b"data"))
    renamed = raw.replace(b"name", b"evil", 1)
    encrypted = bytearray(raw)
    directory = struct.unpack_from("<L", raw, len(raw) - 6)[0]
    encrypted[directory + 8] |= 1
    method = bytearray(raw)
    struct.pack_into("<H", method, directory + 10, 12)
    for bad in (
        renamed,
        bytes(encrypted),
        bytes(method),
        b"junk" + raw,
        raw + b"junk",
        raw[:-10],
        raw[: len(raw) // 2],
    ):
        with pytest.raises(ArchiveRejected):
            workspace.upload(bad, extract=True)
    assert os.listdir(workspace.host_path) == []


_SEEDS = [tar_of(*GOOD), gzip.compress(tar_of(*GOOD), mtime=0), zip_of(*GOOD)]


@given(st.sampled_from(_SEEDS), st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 255)), max_size=6), st.data())
def test_a_damaged_archive_is_read_or_rejected_and_never_anything_else(
    seed: bytes, edits: list[tuple[int, int]], data: st.DataObject
) -> None:
    raw = bytearray(seed)
    for place, value in edits:
        raw[place % len(raw)] = value
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    try:
        archive = read_archive(bytes(raw), ArchiveLimits(total_bytes=1 << 20))
    except ArchiveRejected:
        return
    assert all(".." not in member.parts for member in archive.members)
    assert sum(member.size for member in archive.members) <= 1 << 20


@given(st.lists(st.text(st.sampled_from("ab./~\\"), min_size=1, max_size=8), min_size=1, max_size=4))
def test_whatever_the_names_nothing_is_written_outside(names: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as outer:
        Path(outer, "ws").mkdir()
        workspace = Workspace(Path(outer, "ws"))
        try:
            workspace.upload(tar_of(*((name, b"x") for name in names)), extract=True)
        except SandboxError:
            assert os.listdir(workspace.host_path) == []
        finally:
            workspace.close()
        assert os.listdir(outer) == ["ws"]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("content", [b"", b"x"])
def test_small_compressed_members_are_few(pack: Callable[[bytes], bytes], content: bytes) -> None:
    """Each costs the time of a megabyte."""
    with pytest.raises(ArchiveRejected, match="more than 1000 small"):
        read_archive(pack(tar_of(*GOOD)) + pack(content) * 3000)
