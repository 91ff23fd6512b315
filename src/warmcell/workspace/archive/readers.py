"""Strict readers of tar (ustar, GNU long names and pax paths) and zip archives; only files and directories.

The central directory of a zip archive must agree with its local headers.
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Iterator
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


_END = struct.Struct("<4s4H2LH")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_LONGEST_COMMENT = 65535
_ENCRYPTED, _UTF8 = 0x1, 0x800
_STORED, _DEFLATED = 0, 8
_UNIX = 3


@dataclass(frozen=True, slots=True)
class _Entry:
    raw_name: bytes
    name: str
    flags: int
    method: int
    crc: int
    compressed: int
    size: int
    mode: int
    offset: int

    @property
    def is_dir(self) -> bool:
        return self.name.endswith("/")


def read_zip(stream: IO[bytes], size: int, spool: IO[bytes], limits: ArchiveLimits) -> tuple[Member, ...]:
    """Decompress every member into `spool`, checking checksums and sizes; return the members with their offsets."""
    found = MemberList(limits)
    entries = _directory(stream, size, limits)
    # Declared sizes first: rejects a bomb with honest sizes at no cost.
    limits.check_expansion(sum(entry.size for entry in entries), size)
    end_of_last = 0
    for entry in sorted(entries, key=lambda entry: entry.offset):
        found.count_entry()
        _check_kind(entry)
        start = _start_of_data(stream, entry)
        if entry.offset < end_of_last:
            raise ArchiveRejected(f"{display_path(entry.name)!r} overlaps another member")
        end_of_last = start + entry.compressed
        offset = spool.tell()
        found.add(entry.name, is_dir=entry.is_dir, mode=stat.S_IMODE(entry.mode), size=entry.size, offset=offset)
        _inflate(stream, start, entry, spool)
    return found.members


def _directory(stream: IO[bytes], size: int, limits: ArchiveLimits) -> list[_Entry]:
    stream.seek(max(0, size - _END.size - _LONGEST_COMMENT))
    tail = stream.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise ArchiveRejected("the zip archive has no directory")
    _, disk, start_disk, here, count, length, start, comment = _END.unpack_from(tail, at)
    end = size - len(tail) + at
    if disk or start_disk or here != count or end + _END.size + comment != size or start + length != end:
        raise ArchiveRejected("the zip archive is split, extended or has data around it, which is not supported")
    if count > limits.entries:
        raise ArchiveRejected(f"the archive has more than {limits.entries} entries")
    stream.seek(start)
    return _entries(stream.read(length), count)


def _entries(raw: bytes, count: int) -> list[_Entry]:
    entries, at = [], 0
    for _ in range(count):
        if at + _ENTRY.size > len(raw):
            raise ArchiveRejected("the zip directory is truncated")
        fields = _ENTRY.unpack_from(raw, at)
        magic, made_by, _, flags, method, _, _, crc, compressed, size, name_length, extra, comment, disk = fields[:14]
        attributes, offset = fields[15:]
        name = raw[at + _ENTRY.size : at + _ENTRY.size + name_length]
        if magic != b"PK\x01\x02" or disk or 0xFFFFFFFF in (compressed, size, offset):
            raise ArchiveRejected("the zip directory is malformed or zip64, which is not supported")
        mode = attributes >> 16 if made_by >> 8 == _UNIX or attributes >> 16 else 0
        text = _decode_name(name, flags)
        entries.append(_Entry(name, text, flags, method, crc, compressed, size, mode, offset))
        at += _ENTRY.size + name_length + extra + comment
    if at != len(raw):
        raise ArchiveRejected("the zip directory has the wrong length")
    return entries


def _decode_name(name: bytes, flags: int) -> str:
    try:
        return name.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError:
        raise ArchiveRejected(f"the member name {name[:80]!r} is not UTF-8") from None


def _check_kind(entry: _Entry) -> None:
    kind = stat.S_IFMT(entry.mode)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        reason = "is a link or special file; only files and directories are unpacked"
        raise ArchiveRejected(f"{display_path(entry.name)!r} {reason}")
    if (kind == stat.S_IFDIR) > entry.is_dir or (entry.is_dir and entry.size):
        raise ArchiveRejected(f"{display_path(entry.name)!r} is both a file and a directory")
    if entry.flags & _ENCRYPTED or entry.method not in (_STORED, _DEFLATED):
        raise ArchiveRejected(f"{display_path(entry.name)!r} is encrypted or uses a compression other than deflate")


def _start_of_data(stream: IO[bytes], entry: _Entry) -> int:
    stream.seek(entry.offset)
    header = stream.read(_LOCAL.size)
    if len(header) < _LOCAL.size or header[:4] != b"PK\x03\x04":
        raise ArchiveRejected(f"{display_path(entry.name)!r} is not at the offset in the zip directory")
    name_length, extra = struct.unpack_from("<2H", header, _LOCAL.size - 4)
    if stream.read(name_length) != entry.raw_name:
        raise ArchiveRejected(f"{display_path(entry.name)!r} has another name in its local header")
    return int(entry.offset + _LOCAL.size + name_length + extra)


def _inflate(stream: IO[bytes], start: int, entry: _Entry, spool: IO[bytes]) -> None:
    """Write exactly `entry.size` bytes to the spool, whatever the compressed data would expand to."""
    stream.seek(start)
    done, crc = 0, 0
    packed = _read_stored(stream, entry.compressed)
    for chunk in packed if entry.method == _STORED else _inflate_chunks(packed):
        done, crc = done + len(chunk), zlib.crc32(chunk, crc)
        if done > entry.size:
            break
        spool.write(chunk)
    if done != entry.size or crc != entry.crc:
        raise ArchiveRejected(f"{display_path(entry.name)!r} has another size or checksum than in the zip directory")


def _read_stored(stream: IO[bytes], left: int) -> Iterator[bytes]:
    while left and (data := stream.read(min(left, MIB))):
        left -= len(data)
        yield data


def _inflate_chunks(packed: Iterator[bytes]) -> Iterator[bytes]:
    """Inflate in bounded steps. zlib can hold output after all input is consumed, hence the empty feed."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    for data in packed:
        while data:
            yield inflater.decompress(data, MIB)
            data = inflater.unconsumed_tail
    while not inflater.eof and (rest := inflater.decompress(b"", MIB)):
        yield rest
    if not inflater.eof or inflater.unused_data:
        raise EOFError("the compressed data does not end at its declared size")
