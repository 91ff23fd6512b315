"""Tar files that ADD unpacks: what they are compressed with, and their entries below a directory of the image."""

from __future__ import annotations

import bz2
import lzma
import os
from collections.abc import Callable, Iterator
from typing import IO

from warmcell.core.compressed_members import TooManyMembers, expand
from warmcell.core.errors import ImageInvalid
from warmcell.images.blobs import read_chunks
from warmcell.images.build.layer_writer import Attributes, LayerWriter
from warmcell.images.decompress import LayerReader, decompress
from warmcell.images.limits import Budget, ImageLimits
from warmcell.images.tar_reader import TarEntry, read_entries, read_header, split_path

_XZ_MAGIC, _BZIP2_MAGIC = b"\xfd7zXZ\0", b"BZh"
_MOST_XZ_MEMORY = 256 << 20


def is_archive(stream: IO[bytes]) -> bool:
    """Whether it is a tar file, by its first header. The stream is at its start afterwards."""
    try:
        return read_header(LayerReader(_decompress(stream), Budget(ImageLimits()), 0)) is not None
    except (ImageInvalid, OSError, EOFError):
        return False
    finally:
        stream.seek(0)


def unpack_archive(stream: IO[bytes], directory: str, writer: LayerWriter, budget: Budget) -> None:
    """Add every entry below the directory. No name leads out of it; links are those of the image."""
    reader = LayerReader(_decompress(stream), budget, os.fstat(stream.fileno()).st_size)
    for entry in read_entries(reader):
        if entry.path:
            _add(entry, directory, writer, reader)


def _add(entry: TarEntry, directory: str, writer: LayerWriter, reader: LayerReader) -> None:
    path = _join(directory, entry.path)
    attributes = Attributes(entry.mode, entry.uid, entry.gid, entry.mtime)
    match entry.kind:
        case "directory":
            writer.add_directory(path, attributes)
        case "file":
            writer.add_file(path, attributes, entry.size, _Content(reader))
        case "symlink":
            writer.add_symlink(path, os.fsdecode(entry.link), attributes)
        case "hardlink":
            writer.add_hardlink(path, _join(directory, split_path(entry.link)), attributes)
        case _:  # devices and FIFOs are not part of built images
            return


def _join(directory: str, path: tuple[bytes, ...]) -> str:
    return "/".join([*([directory] if directory else []), os.fsdecode(b"/".join(path))])


class _Content:
    """The content of the present entry."""

    def __init__(self, reader: LayerReader) -> None:
        self.read = reader.read_exactly


def _decompress(stream: IO[bytes]) -> Iterator[bytes]:
    magic = stream.read(len(_XZ_MAGIC))
    stream.seek(0)
    if magic == _XZ_MAGIC:
        return _expand(stream, lambda: lzma.LZMADecompressor(memlimit=_MOST_XZ_MEMORY), _XZ_MAGIC)
    if magic.startswith(_BZIP2_MAGIC):
        return _expand(stream, bz2.BZ2Decompressor, _BZIP2_MAGIC)
    return decompress(stream)


def _expand(
    stream: IO[bytes], make: Callable[[], lzma.LZMADecompressor | bz2.BZ2Decompressor], magic: bytes
) -> Iterator[bytes]:
    try:
        yield from expand(read_chunks(stream), make, magic, is_strict=False)
    except EOFError:
        raise ImageInvalid("the archive is truncated") from None
    except (lzma.LZMAError, OSError, TooManyMembers) as error:
        raise ImageInvalid(f"the archive is damaged: {error}") from None
