"""Reads a directory into chunks, and writes it back.

A file whose inode, size and times are unchanged since the last snapshot is not read.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from warmcell.core.errors import SandboxError, SnapshotInvalid
from warmcell.core.light import closing_fd
from warmcell.workspace.copy import data_ranges
from warmcell.workspace.errors import LimitExceeded
from warmcell.workspace.files import write_all
from warmcell.workspace.names import MAX_PATH_BYTES, Parts
from warmcell.workspace.root import Root, space_for, text_of, translate_os_errors
from warmcell.workspace.walk import Descent, TreeEntry, TreeLimits, open_entry, walk
from warmcell.workspaces.snapshots.chunks import BLOCK, MAX_CHUNK, damage_error
from warmcell.workspaces.snapshots.tree import (
    MAX_SIZE,
    Blocks,
    Entry,
    Line,
    check_names,
    read_piece,
    write_line,
    write_pieces,
)

#: Kernels update file times in ticks: a file that changed this recently may change again with the same time.
_TICK_NS = 100_000_000
_ZEROS = bytes(BLOCK)
LIMITS = TreeLimits(entries=2_000_000, total_bytes=1 << 40, path_bytes=1 << 29, seconds=3600.0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: The most directories in a path.
_MAX_DEPTH = MAX_PATH_BYTES // 2
#: Zero pages become holes again. Blocks have 64 pages: with holes of blocks only, a sparse file could grow 64-fold.
_PAGE = 4096
_ZERO_PAGE = bytes(_PAGE)


class TakenSnapshot(NamedTuple):
    """`scan` is for the next snapshot of the same directory."""

    root: Entry
    files: int
    total_bytes: int
    skipped: tuple[str, ...]
    scan: bytes


class DirectoryReader:
    """`add_chunk` stores data and returns its digest. `scan` is that of the last snapshot.

    `keeps_scan`: return a scan for the next snapshot.
    """

    def __init__(self, add_chunk: Callable[[bytes], str], scan: bytes | None, *, keeps_scan: bool = True) -> None:
        self._add_chunk, self._keeps_scan = add_chunk, keeps_scan
        self._seconds = self._deadline = 0.0
        self._known: dict[str, list[Any]] = json.loads(scan) if scan else {}
        self._scan: dict[str, list[Any]] = {}
        self._links: dict[tuple[int, int], str] = {}
        self._files = self._total = 0
        self._skipped: list[str] = []
        self._newest = time.time_ns() - _TICK_NS

    def read(self, root: Root, limits: TreeLimits = LIMITS) -> TakenSnapshot:
        self._seconds, self._deadline = limits.seconds, time.monotonic() + limits.seconds
        contents: dict[Parts, list[Line]] = {(): []}
        directories: list[tuple[Parts, os.stat_result]] = [((), os.fstat(root.fd))]
        for found in walk(root, (), limits):
            if found.kind == "directory":
                contents[found.parts] = []
                directories.append((found.parts, found.state))
                continue
            line = self._read_entry(found)
            if line is None:
                self._skipped.append(text_of(found.parts))
            else:
                contents[found.parts[:-1]].append(line)
        top = self._write_directories(contents, directories)
        scan = json.dumps(self._scan, separators=(",", ":")).encode("ascii")
        if len(scan) > MAX_CHUNK:  # it could not be read again; without it, the next snapshot reads every file
            scan = b"{}"
        return TakenSnapshot(top, self._files, self._total, tuple(self._skipped), scan)

    def _write_directories(
        self, contents: dict[Parts, list[Line]], directories: list[tuple[Parts, os.stat_result]]
    ) -> Entry:
        """Write the deepest first, because a directory lists the pieces of its subdirectories."""
        while True:
            parts, state = directories.pop()
            pieces = tuple(self._add_chunk(piece) for piece in write_pieces(contents.pop(parts)))
            name = parts[-1] if parts else ""
            entry = Entry("directory", name, stat.S_IMODE(state.st_mode) & 0o777, state.st_mtime_ns, 0, pieces)
            if not parts:
                return entry
            contents[parts[:-1]].append(write_line(entry))

    def _read_entry(self, found: TreeEntry) -> Line | None:
        """None for what cannot be stored: special files, unreadable files, and files of more than 64 TiB."""
        if found.kind == "symlink":
            try:
                return write_line(Entry("symlink", found.name, target=os.readlink(found.name, dir_fd=found.dir_fd)))
            except OSError:
                return None
        if found.kind != "file" or found.state.st_size > MAX_SIZE:
            return None
        if found.state.st_nlink > 1:
            path = "/".join(found.parts)
            first = self._links.setdefault((found.state.st_dev, found.state.st_ino), path)
            if first != path:
                return write_line(Entry("hardlink", found.name, target=first))
        line = self._reuse_line(found) or self._read_file(found)
        if line is None and found.state.st_nlink > 1:
            del self._links[found.state.st_dev, found.state.st_ino]
        return line

    def _reuse_line(self, found: TreeEntry) -> Line | None:
        path, state = "/".join(found.parts), found.state
        known = self._known.get(path)
        if known is None or known[:-1] != _identity(state):
            return None
        self._scan[path] = known
        return self._count(state, Line(found.name, known[-1]))

    def _read_file(self, found: TreeEntry) -> Line | None:
        fd = open_entry(found)
        if fd is None:
            return None
        with closing_fd(fd), translate_os_errors(found.parts):
            state = os.fstat(fd)
            blocks = self._read_blocks(fd, state.st_size, found.parts)
            after = os.fstat(fd)
        mode = stat.S_IMODE(state.st_mode) & 0o777
        line = write_line(Entry("file", found.name, mode, state.st_mtime_ns, state.st_size, blocks))
        is_settled = _identity(after) == _identity(state) and max(state.st_mtime_ns, state.st_ctime_ns) < self._newest
        if is_settled and self._keeps_scan:
            self._scan["/".join(found.parts)] = [*_identity(state), line.text]
        return self._count(state, line)

    def _read_blocks(self, fd: int, size: int, parts: Parts) -> Blocks:
        """Blocks of zeros become holes, whether or not they are holes in the file system."""
        blocks: list[str | int] = []
        holes = done = 0
        for start, end in data_ranges(fd, parts, LIMITS.total_bytes):
            first = max(done, start // BLOCK)
            holes += first - done
            done = first
            for number in range(first, -(-end // BLOCK)):
                if time.monotonic() > self._deadline:
                    raise LimitExceeded(text_of(parts)[:200], "takes too long to read", limit=int(self._seconds))
                data = _read_at(fd, number * BLOCK, min(BLOCK, size - number * BLOCK))
                done += 1
                if data == _ZEROS[: len(data)]:
                    holes += 1
                    continue
                if holes:
                    blocks.append(holes)
                    holes = 0
                blocks.append(self._add_chunk(data))
        holes += -(-size // BLOCK) - done
        return (*blocks, holes) if holes else tuple(blocks)

    def _count(self, state: os.stat_result, line: Line) -> Line:
        self._files += 1
        self._total += state.st_size
        return line


def _identity(state: os.stat_result) -> list[int]:
    return [state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns]


def _read_at(fd: int, offset: int, length: int) -> bytes:
    """Exactly that many bytes, padded with zeros if the file was truncated meanwhile."""
    data = os.pread(fd, length, offset)
    while len(data) < length and (more := os.pread(fd, length - len(data), offset + len(data))):
        data += more
    return data.ljust(length, b"\0")


class _HardLink(NamedTuple):
    parts: Parts
    target: Parts


class TreeWriter:
    """Writes a snapshot into an empty root. Names and links are checked, so that nothing is written outside.

    `read_chunk` returns the verified data of a digest.
    """

    def __init__(self, read_chunk: Callable[[str], bytes], root: Root) -> None:
        self._read_chunk, self._root = read_chunk, root
        self._entries = 0
        self._hard_links: list[_HardLink] = []
        #: Directories, whose modes and times are set last: modes may forbid writing, and writing changes times.
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
                raise damage_error(block, "its size does not match its file")
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
    """Read and check the entries of a directory."""
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
