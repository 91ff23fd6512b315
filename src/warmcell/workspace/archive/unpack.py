"""Unpacks untrusted archives. The whole archive is checked before anything is written.

`read_archive` returns members with checked names, and a private file with their content; `unpack` writes them through
`Root`. Links, special files, set-id bits and duplicate names are refused. The readers are our own because those of the
standard library support extensions that would be dangerous here.
"""

from __future__ import annotations

import bz2
import io
import lzma
import os
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO

from warmcell.core.compressed_members import expand, gunzip
from warmcell.core.errors import PathTraversal
from warmcell.core.types import MIB
from warmcell.workspace.archive.members import ArchiveLimits, Member
from warmcell.workspace.archive.tar import read_tar
from warmcell.workspace.archive.zip import read_zip
from warmcell.workspace.descent import Descent
from warmcell.workspace.errors import ArchiveRejected, FileMissing, WrongKind
from warmcell.workspace.files import replace_file
from warmcell.workspace.names import Parts
from warmcell.workspace.root import Root, text_of, translate_os_errors

_SPOOL_IN_MEMORY = 8 * MIB
_XZ_MEMORY = 128 * MIB
_DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError)


@dataclass(frozen=True, slots=True)
class Archive:
    """A checked archive: its members, and an open file with their content."""

    members: tuple[Member, ...]
    content: IO[bytes]

    def data_of(self, member: Member) -> bytes:
        self.content.seek(member.offset)
        return self.content.read(member.size)


def read_archive(source: bytes | IO[bytes], limits: ArchiveLimits | None = None) -> Archive:
    """Read tar (plain, gzip, bzip2, xz) or zip. Raises `ArchiveRejected`."""
    limits = limits or ArchiveLimits()
    stream = io.BytesIO(source) if isinstance(source, bytes) else source
    size = stream.seek(0, os.SEEK_END)
    if size > limits.largest_input:
        raise ArchiveRejected(f"the archive has {size} bytes, more than {limits.largest_input}")
    stream.seek(0)
    magic = stream.read(6)
    stream.seek(0)
    try:
        members, content = _read(magic, stream, size, limits)
    except _DAMAGED as error:
        raise ArchiveRejected(f"the archive is damaged: {error}") from None
    return Archive(members, content)


def _read(magic: bytes, stream: IO[bytes], size: int, limits: ArchiveLimits) -> tuple[tuple[Member, ...], IO[bytes]]:
    if magic.startswith(b"PK"):
        spool = _spool()
        return read_zip(stream, size, spool, limits), spool
    decompress = _DECOMPRESSORS.get(magic[:2])
    if decompress is not None:
        spool = _spool()
        size = _decompress_into(spool, decompress(stream), size, limits)
        stream = spool
    return read_tar(stream, size, limits), stream


def _spool() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(max_size=_SPOOL_IN_MEMORY)


def _decompress_into(spool: IO[bytes], chunks: Iterator[bytes], compressed: int, limits: ArchiveLimits) -> int:
    total = 0
    for chunk in chunks:
        total += len(chunk)
        limits.check_expansion(total, compressed, overhead=True)
        spool.write(chunk)
    return total


def _read_chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(MIB):
        yield chunk


def _gzip_chunks(stream: IO[bytes]) -> Iterator[bytes]:
    return gunzip(_read_chunks(stream), is_strict=True)


def _bzip2_chunks(stream: IO[bytes]) -> Iterator[bytes]:
    return expand(_read_chunks(stream), bz2.BZ2Decompressor, b"BZ", is_strict=False)


def _xz_chunks(stream: IO[bytes]) -> Iterator[bytes]:
    """With a limit on memory: an xz header may ask for gigabytes."""
    make = partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
    return expand(_read_chunks(stream), make, b"\xfd", is_strict=False)


_DECOMPRESSORS: dict[bytes, Callable[[IO[bytes]], Iterator[bytes]]] = {
    b"\x1f\x8b": _gzip_chunks,
    b"BZ": _bzip2_chunks,
    b"\xfd7": _xz_chunks,
}


def unpack(root: Root, base: Parts, archive: Archive) -> int:
    """Write the members beneath `base` and return the number of files. Conflicts are found before the first write."""
    with Descent(root) as descent:
        for member in archive.members:
            _check_target(descent, (*base, *member.parts), member)
    files = 0
    with Descent(root, create=True) as descent:
        descent.enter(base)
        for member in archive.members:
            target = (*base, *member.parts)
            if member.is_dir:
                descent.enter(target)
            else:
                fd = descent.enter(target[:-1])
                replace_file(root, fd, target, archive.data_of(member), executable=member.is_executable)
                files += 1
    return files


def _check_target(descent: Descent, target: Parts, member: Member) -> None:
    try:
        with translate_os_errors(target):
            mode = os.stat(target[-1], dir_fd=descent.enter(target[:-1]), follow_symlinks=False).st_mode
    except FileMissing:
        return
    if stat.S_ISDIR(mode) != member.is_dir and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise WrongKind(text_of(target), "exists and is of another type than in the archive")
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise PathTraversal(text_of(target), "is a link or special file, which is never written through")
