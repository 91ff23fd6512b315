"""A strict tar reader: ustar, GNU long names and pax paths; only files and directories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from warmcell.core.types import MIB
from warmcell.workspace.archive.members import ArchiveLimits, Member, MemberList
from warmcell.workspace.errors import ArchiveRejected
from warmcell.workspace.names import display_path

_BLOCK = 512
#: For one extended header, and for all together. Names have at most 4,096 bytes; nothing else is used.
_MAX_EXTENSION = 64 * 1024
_MAX_EXTENSIONS = 8 * MIB
_FILE, _DIRECTORY, _PAX, _PAX_GLOBAL, _GNU_LONG_NAME = b"0", b"5", b"x", b"g", b"L"
_EXTENSIONS = (_PAX, _PAX_GLOBAL, _GNU_LONG_NAME)
_KINDS = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"6": "a FIFO"}
#: Keys of pax headers that are used or can be ignored.
_HARMLESS_PAX = {"mtime", "atime", "ctime", "uid", "gid", "uname", "gname", "comment", "size", "path"}


@dataclass(slots=True)
class _Overrides:
    """Values from extended headers for the next member."""

    name: str | None = None
    size: int | None = None

    def take(self, kind: bytes, payload: bytes) -> None:
        if kind == _GNU_LONG_NAME:
            self.name = _text(payload.rstrip(b"\0"))
            return
        values = _pax(payload)
        if kind == _PAX_GLOBAL and values.keys() & {"path", "size"}:
            raise ArchiveRejected("a global header sets a path or size")
        self.name = values.get("path", self.name)
        self.size = _pax_number(values["size"]) if "size" in values else self.size


def read_tar(stream: IO[bytes], size: int, limits: ArchiveLimits) -> tuple[Member, ...]:
    """The members of an uncompressed tar of `size` bytes, with the offsets of their content."""
    if size < _BLOCK:
        raise ArchiveRejected("this is not a tar or zip archive")
    found, overrides, offset, extended = MemberList(limits), _Overrides(), 0, 0
    while (header := _header_at(stream, offset, size)) is not None:
        found.count_entry()
        offset += _BLOCK
        length, kind = _number(header[124:136], "size"), header[156:157].replace(b"\0", _FILE)
        if kind in _EXTENSIONS:
            extended += length
            if extended > _MAX_EXTENSIONS:
                raise ArchiveRejected("the extended headers are too long")
            overrides.take(kind, _extension(stream, offset, length, size))
        else:
            length = length if overrides.size is None else overrides.size
            _add(found, overrides.name or _text(member_name(header)), kind, header, length, offset, size)
            overrides = _Overrides()
        offset += -(-length // _BLOCK) * _BLOCK
    return found.members


def _header_at(stream: IO[bytes], offset: int, size: int) -> bytes | None:
    """The next header, or None at the end: a block of zeros, or end of file after a member."""
    if offset >= size:
        return None
    stream.seek(offset)
    header = stream.read(_BLOCK)
    if len(header) < _BLOCK:
        raise ArchiveRejected("this is not a tar or zip archive, or it is truncated")
    if not any(header):
        return None
    unsigned = sum(header) - sum(header[148:156]) + 8 * ord(" ")
    if _number(header[148:156], "checksum") != unsigned:
        raise ArchiveRejected("this is not a tar or zip archive, or it is damaged")
    return header


def _add(found: MemberList, name: str, kind: bytes, header: bytes, length: int, offset: int, size: int) -> None:
    if kind not in (_FILE, _DIRECTORY):
        what = _KINDS.get(kind, f"of the unknown type {kind!r}")
        raise ArchiveRejected(f"{display_path(name)!r} is {what}; only files and directories are unpacked")
    is_dir = kind == _DIRECTORY or name.endswith("/")
    if is_dir and length:
        raise ArchiveRejected(f"{display_path(name)!r} is a directory with content")
    if offset + length > size:
        raise ArchiveRejected(f"{display_path(name)!r} is cut short")
    found.add(name, is_dir=is_dir, mode=_number(header[100:108], "mode"), size=length, offset=offset)


def _number(field: bytes, what: str) -> int:
    """Parse an octal number. GNU tar's binary form, for negative sizes and sizes from 8 GiB, is refused."""
    text = field.split(b"\0")[0].strip()
    if not text:
        return 0
    if not all(byte in b"01234567" for byte in text):
        raise ArchiveRejected(f"a header has a bad {what}")
    return int(text, 8)


def member_name(header: bytes) -> bytes:
    """The path in a header, without the extended headers before it."""
    name = header[:100].split(b"\0")[0]
    # GNU's older format has times in the place of ustar's prefix.
    prefix = header[345:500].split(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ArchiveRejected(f"the member name {raw[:80]!r} is not UTF-8") from None


def _extension(stream: IO[bytes], offset: int, length: int, size: int) -> bytes:
    if length > _MAX_EXTENSION or offset + length > size:
        raise ArchiveRejected("an extended header is too long")
    stream.seek(offset)
    return stream.read(length)


def _pax(payload: bytes) -> dict[str, str]:
    """Parse pax records: "LENGTH KEY=VALUE\\n", where the length includes the whole record."""
    values: dict[str, str] = {}
    at = 0
    while at < len(payload):
        digits, _, _ = payload[at : at + 20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record = payload[at + len(digits) + 1 : at + length]
        key, equals, value = record.partition(b"=")
        if length < len(digits) + 4 or not equals or not value.endswith(b"\n"):
            raise ArchiveRejected("an extended header is malformed")
        values[_text(key)] = _text(value[:-1])
        at += length
    unknown = [key for key in values if key not in _HARMLESS_PAX and not key.startswith(("LIBARCHIVE.", "SCHILY."))]
    if unknown:
        raise ArchiveRejected(f"an extended header has the key {display_path(unknown[0])!r}, which is not supported")
    return values


def _pax_number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise ArchiveRejected("an extended header has a bad size")
    return int(text)
