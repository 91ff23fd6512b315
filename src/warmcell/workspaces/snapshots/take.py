"""Reads a directory into chunks. A file whose identity, size and times are those of the last snapshot is not read."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from warmcell.core.light import closing_fd
from warmcell.workspace.copy import data_ranges
from warmcell.workspace.errors import LimitExceeded
from warmcell.workspace.names import Parts
from warmcell.workspace.root import Root, text_of, translate_os_errors
from warmcell.workspace.walk import TreeEntry, TreeLimits, open_entry, walk
from warmcell.workspaces.snapshots.chunks import BLOCK
from warmcell.workspaces.snapshots.tree import MAX_SIZE, Blocks, Entry, Line, write_line, write_pieces

#: A file that was changed so shortly before it was read may change again without a new time: kernels count in ticks.
_TICK_NS = 100_000_000
_ZEROS = bytes(BLOCK)
LIMITS = TreeLimits(entries=2_000_000, total_bytes=1 << 40, path_bytes=1 << 29, seconds=3600.0)


class Taken(NamedTuple):
    """`scan` is for the next snapshot of the same directory."""

    root: Entry
    files: int
    total_bytes: int
    skipped: tuple[str, ...]
    scan: bytes


class DirectoryReader:
    """`add_chunk` stores data and returns its digest. `scan` is that of the last snapshot.

    `keeps_scan`: there will be a next snapshot that needs one.
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

    def read(self, root: Root, limits: TreeLimits = LIMITS) -> Taken:
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
        made = self._write_directories(contents, directories)
        scan = json.dumps(self._scan, separators=(",", ":")).encode("ascii")
        return Taken(made, self._files, self._total, tuple(self._skipped), scan)

    def _write_directories(
        self, contents: dict[Parts, list[Line]], directories: list[tuple[Parts, os.stat_result]]
    ) -> Entry:
        """The deepest first: a directory names the pieces of those in it."""
        while True:
            parts, state = directories.pop()
            pieces = tuple(self._add_chunk(piece) for piece in write_pieces(contents.pop(parts)))
            name = parts[-1] if parts else ""
            entry = Entry("directory", name, stat.S_IMODE(state.st_mode) & 0o777, state.st_mtime_ns, 0, pieces)
            if not parts:
                return entry
            contents[parts[:-1]].append(write_line(entry))

    def _read_entry(self, found: TreeEntry) -> Line | None:
        """None for what cannot be kept: special files, what cannot be read, and files of more than 64 TiB."""
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
        """Blocks without data are holes, whether or not the file system has them as such."""
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
    """Exactly that many bytes: a file that was cut meanwhile is read as zeros."""
    data = os.pread(fd, length, offset)
    while len(data) < length and (more := os.pread(fd, length - len(data), offset + len(data))):
        data += more
    return data.ljust(length, b"\0")
