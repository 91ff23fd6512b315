"""An initramfs in cpio's "newc" format, written by hand so that it needs neither root nor the cpio program."""

from __future__ import annotations

import stat
from typing import IO, NamedTuple

_MAGIC = "070701"
_TRAILER = "TRAILER!!!"


class Entry(NamedTuple):
    """A directory (`content` is None), a file, or a character device (`device` is major, minor)."""

    name: str
    content: bytes | None = None
    device: tuple[int, int] | None = None

    @property
    def mode(self) -> int:
        if self.device is not None:
            return stat.S_IFCHR | 0o600
        return stat.S_IFDIR | 0o755 if self.content is None else stat.S_IFREG | 0o755


def write_archive(file: IO[bytes], entries: list[Entry]) -> None:
    """Everything belongs to root and dates from 1970, so that equal contents make equal archives."""
    for number, entry in enumerate(entries, start=1):
        _write(file, number, entry.mode, entry)
    _write(file, 0, 0, Entry(_TRAILER, b""))


def _write(file: IO[bytes], number: int, mode: int, entry: Entry) -> None:
    name, content = entry.name.encode() + b"\0", entry.content or b""
    major, minor = entry.device or (0, 0)
    # inode, mode, uid, gid, links, mtime, size, device of the file, device that it is, length of the name, checksum
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name), 0)
    header = (_MAGIC + "".join(f"{field:08x}" for field in fields)).encode()
    file.write(header + name + _padding(len(header) + len(name)))
    file.write(content + _padding(len(content)))


def _padding(length: int) -> bytes:
    return bytes(-length % 4)
