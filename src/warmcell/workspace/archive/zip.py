"""A strict zip reader: the central directory must agree with the local headers."""

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
        raise ArchiveRejected(
            f"{display_path(entry.name)!r} is a link or special file; only files and directories are unpacked"
        )
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
