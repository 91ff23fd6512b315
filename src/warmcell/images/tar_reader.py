"""Parses layers: tar streams in ustar, GNU or pax format. Unknown features are refused.

`tarfile` is not used: it guesses, trusts the sizes in headers, and keeps every entry in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from warmcell.core.errors import ImageInvalid
from warmcell.core.records import dataclass
from warmcell.images.decompress import LayerReader
from warmcell.images.limits import MAX_NAME_BYTES, MAX_PATH_BYTES
from warmcell.workspace.archive.readers import member_name

BLOCK = 512
_MAX_EXTENSION = 1 << 20
#: Writers put at most one header of each kind before a member, with a handful of records.
_MAX_HEADERS, _MAX_RECORDS = 16, 1000
#: More than any file system holds, and less than the kernel's largest offset.
_MAX_SIZE = 1 << 56
#: The largest id in Linux; chown takes the next one for "unchanged".
_MAX_OWNER = (1 << 32) - 2
#: The pax records that are used. All others are dropped: a layer may have any number of them.
_KNOWN_RECORDS = frozenset({"path", "linkpath", "size", "uid", "gid", "mtime"})
_SPARSE = "GNU.sparse"
Kind = Literal["file", "directory", "symlink", "hardlink", "special"]
_KINDS: dict[bytes, Kind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hardlink",
    b"2": "symlink",
    b"3": "special",
    b"4": "special",
    b"5": "directory",
    b"6": "special",
}
_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL, _GNU_SPARSE = b"L", b"K", b"x", b"g", b"S"


@dataclass(frozen=True, slots=True)
class TarEntry:
    """One member. Names are bytes: a layer need not be UTF-8. `path` has no empty name, no "." and no ".."."""

    path: tuple[bytes, ...]
    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    link: bytes

    @property
    def text(self) -> str:
        return display(b"/".join(self.path))


def display(raw: bytes) -> str:
    """A name of the layer in an error message: one line, no control characters, bounded."""
    return raw[:200].decode("utf-8", "backslashreplace").encode("unicode_escape").decode() or "."


def read_entries(reader: LayerReader) -> Iterator[TarEntry]:
    """The members in order. The caller reads the content of each (`size` bytes) or leaves some of it unread."""
    extensions: dict[str, bytes] = {}
    count = 0
    while (header := read_header(reader)) is not None:
        kind, size = header[156:157], _number(header[124:136], "size")
        if kind in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL):
            count += 1
            if count > _MAX_HEADERS:
                raise ImageInvalid("a member of a layer has too many extended headers")
            extensions |= _read_extension(reader, kind, size)
            continue
        if kind == _GNU_SPARSE or _SPARSE in extensions:
            raise ImageInvalid("a layer has a sparse file, which is not supported", hint="write it without --sparse")
        entry = _make_entry(header, extensions, size)
        extensions, count = {}, 0
        end = reader.position + entry.size
        yield entry
        reader.skip(end - reader.position)
        reader.read_exactly(-entry.size % BLOCK)  # some writers leave out the padding of the last member


def read_header(reader: LayerReader) -> bytes | None:
    """The next header, or None at the end: a block of zeros, or the end of the stream."""
    header = reader.read_exactly(BLOCK)
    if not header or header.count(0) == BLOCK:
        return None
    if len(header) < BLOCK:
        raise ImageInvalid("a layer is truncated")
    total = sum(header) - sum(header[148:156]) + 8 * 32
    if _number(header[148:156], "checksum") != total:
        raise ImageInvalid("a layer is not a tar archive, or is damaged: bad checksum of a header")
    return header


def _make_entry(header: bytes, extensions: dict[str, bytes], size: int) -> TarEntry:
    flag = header[156:157]
    name = extensions.get("path", member_name(header))
    kind = _KINDS.get(flag)
    if kind is None:
        raise ImageInvalid(f"{display(name)!r} has the unknown tar type {flag!r}")
    if kind == "file" and name.endswith(b"/"):
        kind = "directory"
    if "size" in extensions:
        size = _decimal(extensions["size"], "size")
    link = extensions.get("linkpath", header[157:257].split(b"\0")[0])
    if b"\0" in link:
        raise ImageInvalid(f"{display(name)!r} is a link with a null byte")
    return TarEntry(
        path=split_path(name),
        kind=kind,
        mode=_number(header[100:108], "mode") & 0o7777,
        uid=_owner(extensions, "uid", header[108:116]),
        gid=_owner(extensions, "gid", header[116:124]),
        size=_content_size(name, kind, size),
        mtime=_mtime(extensions, header[136:148]),
        link=link,
    )


def _content_size(name: bytes, kind: Kind, size: int) -> int:
    """The size of the content after the header. Some writers give links the size of their target."""
    if size > _MAX_SIZE:
        raise ImageInvalid(f"{display(name)!r} has an impossible size")
    if kind == "directory" and size:
        raise ImageInvalid(f"{display(name)!r} is a directory with content")
    return size if kind == "file" else 0


def split_path(name: bytes) -> tuple[bytes, ...]:
    """The names of a path. Leading slashes and "." are dropped, as every extractor does; ".." is refused."""
    parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if b".." in parts:
        raise ImageInvalid(f"{display(name)!r} leads out of the image")
    if b"\0" in name:
        raise ImageInvalid(f"{display(name)!r} contains a null byte")
    if len(name) > MAX_PATH_BYTES or any(len(part) > MAX_NAME_BYTES for part in parts):
        raise ImageInvalid(f"the path {display(name)!r}... is too long")
    return parts


def _read_extension(reader: LayerReader, kind: bytes, size: int) -> dict[str, bytes]:
    if size > _MAX_EXTENSION:
        raise ImageInvalid("an extended header of a layer is too long")
    payload = reader.read_exactly(size)
    reader.skip(-size % BLOCK)
    if len(payload) < size:
        raise ImageInvalid("a layer is truncated")
    if kind == _LONG_NAME:
        return {"path": payload.rstrip(b"\0")}
    if kind == _LONG_LINK:
        return {"linkpath": payload.rstrip(b"\0")}
    records = dict(_pax_records(payload))
    if kind == _PAX_GLOBAL:
        if records.keys() & {"path", "linkpath", "size"}:
            raise ImageInvalid("a global header of a layer sets a path or a size")
        return {}
    return records


def _pax_records(payload: bytes) -> Iterator[tuple[str, bytes]]:
    """Parse records "LENGTH KEY=VALUE\\n", where LENGTH counts the whole record. Unknown keys are dropped."""
    at = count = 0
    while at < len(payload):
        count += 1
        if count > _MAX_RECORDS:
            raise ImageInvalid(f"an extended header of a layer has more than {_MAX_RECORDS} records")
        digits, _, _ = payload[at : at + 20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        key, equals, value = payload[at + len(digits) + 1 : at + length].partition(b"=")
        if length < len(digits) + 4 or at + length > len(payload) or not equals or not value.endswith(b"\n"):
            raise ImageInvalid("an extended header of a layer is malformed")
        if (name := key.decode("utf-8", "replace")) in _KNOWN_RECORDS:
            yield name, value[:-1]
        elif name.startswith(_SPARSE):
            yield _SPARSE, b""
        at += length


def _number(data: bytes, what: str) -> int:
    """An octal number, or GNU's binary form. Negative ones are refused."""
    if data[0] == 0x80:
        return int.from_bytes(data[1:], "big")
    text = data.split(b"\0")[0].strip()
    if any(byte not in b"01234567" for byte in text):
        raise ImageInvalid(f"a layer has a malformed tar header: invalid {what}")
    return int(text or b"0", 8)


def _decimal(value: bytes, what: str) -> int:
    if not value.isdigit() or len(value) > 18:
        raise ImageInvalid(f"a layer has a malformed extended tar header: invalid {what}")
    return int(value)


def _owner(extensions: dict[str, bytes], key: str, data: bytes) -> int:
    found = _decimal(extensions[key], key) if key in extensions else _number(data, key)
    if found > _MAX_OWNER:
        raise ImageInvalid(f"a layer has a malformed tar header: {key} is larger than {_MAX_OWNER}")
    return found


def _mtime(extensions: dict[str, bytes], data: bytes) -> int:
    """Seconds, limited to what every file system can store."""
    text = extensions.get("mtime", b"").partition(b".")[0]
    if text.removeprefix(b"-").isdigit() and len(text) < 18:
        seconds = int(text)
    elif data[0] in (0x80, 0xFF):
        seconds = int.from_bytes(data, "big", signed=True) if data[0] == 0xFF else int.from_bytes(data[1:], "big")
    else:
        seconds = _number(data, "time")
    return max(0, min(seconds, 0x7FFFFFFF))
