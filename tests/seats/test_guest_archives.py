"""Directories that a guest packed, on the host."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from warmcell.interfaces.seats.cage_commands import unpack_guest_tar


def member(
    name: str, kind: bytes = tarfile.REGTYPE, target: str = "", data: bytes = b""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(data)
    return info, data


def pack(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.attack("WS-10")
def test_links_names_that_lead_out_and_devices_are_left_out(tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    archive = pack(
        member("logs", tarfile.DIRTYPE),
        member("logs/a.txt", data=b"kept"),
        member("logs/latest", tarfile.SYMTYPE, "a.txt"),
        member("way", tarfile.SYMTYPE, str(outside)),
        member("way/planted", data=b"x"),
        member("hard", tarfile.LNKTYPE, "logs/a.txt"),
        member("../outside/above", data=b"x"),
        member("pipe", tarfile.FIFOTYPE),
        member("null", tarfile.CHRTYPE),
        member("logs/b.txt", data=b"kept too"),
    )
    unpack_guest_tar(archive, target)
    found = {str(path.relative_to(target)): path for path in target.rglob("*") if not path.is_dir()}
    assert set(found) == {"logs/a.txt", "logs/b.txt", "way/planted"} and not any(
        map(Path.is_symlink, target.rglob("*"))
    )
    assert found["logs/a.txt"].read_bytes() == b"kept" and list(outside.iterdir()) == []


def test_a_small_archive_does_not_fill_the_disk(tmp_path: Path) -> None:
    """A sparse file of 64 TiB has a header, and no more."""
    sparse = tarfile.TarInfo("hole")
    sparse.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 46)}
    sparse.size = 512
    data = sparse.tobuf(tarfile.PAX_FORMAT) + b"0\n".ljust(512, b"\0")
    unpack_guest_tar(data + pack(member("kept", data=b"kept")), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    with pytest.raises(tarfile.ReadError):
        unpack_guest_tar(gzip.compress(pack(member("a", data=bytes(1 << 20)))), tmp_path)
