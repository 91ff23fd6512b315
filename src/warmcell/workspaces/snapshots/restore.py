"""Writes the tree of a snapshot into a directory. Names and links are checked: nothing is written outside."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from warmcell.core.errors import SandboxError, SnapshotInvalid
from warmcell.core.light import closing_fd
from warmcell.workspace.descent import Descent
from warmcell.workspace.files import write_all
from warmcell.workspace.names import MAX_PATH_BYTES, Parts
from warmcell.workspace.quota import space_for
from warmcell.workspace.root import Root, text_of, translate_os_errors
from warmcell.workspaces.snapshots.chunks import BLOCK, damage_error
from warmcell.workspaces.snapshots.take import LIMITS
from warmcell.workspaces.snapshots.tree import Entry, check_names, read_piece

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: As deep as a path can be that a snapshot is taken of.
_MAX_DEPTH = MAX_PATH_BYTES // 2
#: Pages without data become holes again. Blocks are larger: written as a whole, a sparse file could grow by 64 times.
_PAGE = 4096
_ZERO_PAGE = bytes(_PAGE)


class _HardLink(NamedTuple):
    parts: Parts
    target: Parts


class TreeWriter:
    """`read_chunk` returns the verified data of a digest. The root should be empty."""

    def __init__(self, read_chunk: Callable[[str], bytes], root: Root) -> None:
        self._read_chunk, self._root = read_chunk, root
        self._entries = 0
        self._hard_links: list[_HardLink] = []
        #: Modes and times of directories, set last: writing into them needs the one and changes the other.
        self._directories: list[tuple[Parts, Entry]] = []

    def write(self, top: Entry) -> None:
        waiting: list[tuple[Parts, Entry]] = [((), top)]
        with Descent(self._root, create=True) as descent:
            while waiting:
                parts, directory = waiting.pop()
                self._directories.append((parts, directory))
                waiting += self._write_directory(descent, parts, directory)
            self._make_hard_links(descent)
            for parts, directory in reversed(self._directories):
                with translate_os_errors(parts):
                    _finish_directory(descent.enter(parts), directory)

    def _write_directory(self, descent: Descent, parts: Parts, directory: Entry) -> list[tuple[Parts, Entry]]:
        fd = descent.enter(parts)
        below = []
        for entry in self._list(directory, parts):
            path = (*parts, entry.name)
            with translate_os_errors(path):
                if entry.kind == "directory":
                    below.append((path, entry))
                elif entry.kind == "file":
                    self._write_file(fd, path, entry)
                elif entry.kind == "symlink":  # never followed by the host, so any target is safe
                    os.symlink(entry.target, entry.name, dir_fd=fd)
                else:
                    self._hard_links.append(_HardLink(path, tuple(entry.target.split("/"))))
        return below

    def _list(self, directory: Entry, parts: Parts) -> list[Entry]:
        entries = list_directory(self._read_chunk, directory)
        self._entries += len(entries)
        if self._entries > LIMITS.entries or len(parts) > _MAX_DEPTH:
            place = text_of(parts)[:200]
            raise SnapshotInvalid(f"the snapshot is invalid: too many entries, or too deep, at {place!r}")
        return entries

    def _write_file(self, dir_fd: int, parts: Parts, entry: Entry) -> None:
        charged = self._root.charge(parts, space_for(0))
        with charged, closing_fd(os.open(entry.name, _CREATE, 0o600, dir_fd=dir_fd)) as fd:
            self._write_blocks(fd, parts, entry)
            os.fchmod(fd, entry.mode)
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))

    def _write_blocks(self, fd: int, parts: Parts, entry: Entry) -> None:
        offset, room = 0, space_for(0)  # one page was charged with the file
        for block in entry.blocks:
            if isinstance(block, int):
                offset += block * BLOCK
                continue
            data = self._read_chunk(block)
            if len(data) != min(BLOCK, entry.size - offset):
                raise damage_error(block, "it has another size than its file says")
            for start, end in find_data(data):
                with self._root.charge(parts, max(0, space_for(end - start) - room)):
                    os.lseek(fd, offset + start, os.SEEK_SET)
                    write_all(fd, data[start:end])
                room = 0
            offset += len(data)
        os.ftruncate(fd, entry.size)

    def _make_hard_links(self, descent: Descent) -> None:
        for link in self._hard_links:
            try:
                with self._root.parent(link.target) as (source_fd, name):
                    fd = descent.enter(link.parts[:-1])
                    with translate_os_errors(link.parts):
                        os.link(name, link.parts[-1], src_dir_fd=source_fd, dst_dir_fd=fd, follow_symlinks=False)
            except SandboxError as error:
                where = text_of(link.parts)
                raise SnapshotInvalid(f"the snapshot is invalid: the hard link {where!r}: {error}") from None


def list_directory(read_chunk: Callable[[str], bytes], directory: Entry) -> list[Entry]:
    """The entries of a directory, checked."""
    pieces = (read_chunk(block) for block in directory.blocks if isinstance(block, str))
    return check_names(entry for piece in pieces for entry in read_piece(piece))


def find_data(block: bytes) -> list[tuple[int, int]]:
    """The ranges of a block whose pages are not all zeros."""
    if _ZERO_PAGE not in block:
        return [(0, len(block))]
    ranges: list[tuple[int, int]] = []
    for start in range(0, len(block), _PAGE):
        page = block[start : start + _PAGE]
        if page == _ZERO_PAGE[: len(page)]:
            continue
        first = ranges.pop()[0] if ranges and ranges[-1][1] == start else start
        ranges.append((first, start + len(page)))
    return ranges


def _finish_directory(fd: int, entry: Entry) -> None:
    os.fchmod(fd, entry.mode if entry.name else entry.mode | 0o700)
    os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
