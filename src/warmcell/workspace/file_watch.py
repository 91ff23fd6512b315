"""File events of a directory or a tree, seen from the host.

The guest causes the events, so everything is bounded: the kernel's queue, the watched directories, and the entries
reported for one new directory. Past a bound, an "overflow" event says that events were lost.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import sys
import termios
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from warmcell.core.errors import BackendUnavailable, ExecutionFailed, SandboxError
from warmcell.core.light import closing_fd
from warmcell.core.records import dataclass
from warmcell.lifetime.descriptors import Descriptors, host_failure
from warmcell.workspace.names import Parts, printable
from warmcell.workspace.root import OPEN_DIRECTORY, Root, is_temporary_name, open_one

MODIFY, ATTRIB, MOVED_FROM, MOVED_TO = 0x002, 0x004, 0x040, 0x080
CREATE, DELETE, DELETE_SELF = 0x100, 0x200, 0x400
OVERFLOW, IGNORED, IS_DIRECTORY = 0x4000, 0x8000, 0x4000_0000
#: Watch only directories; no events for files that are already unlinked.
_ONLY_DIRECTORIES, _NOT_UNLINKED = 0x0100_0000, 0x0400_0000
_WANTED = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF

_HEAD = struct.Struct("iIII")
_BUFFER = 1 << 16


class Record(NamedTuple):
    """One kernel record: the watch, the event mask, and the name in the watched directory."""

    watch: int
    mask: int
    name: str
    #: The offset of its end in the data.
    end: int


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def most_instances() -> int:
    """How many instances the kernel allows this user, over all its processes."""
    return int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())


def _create_inotify() -> int:
    """Create a non-blocking inotify descriptor; the caller owns it."""
    return _check_result(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def add_watch(descriptor: int, directory: int) -> int:
    """Watch an open directory, by descriptor and not by name; return the watch."""
    path = f"/proc/self/fd/{directory}".encode()
    return _check_result(_libc().inotify_add_watch(descriptor, path, _WANTED | _ONLY_DIRECTORIES | _NOT_UNLINKED))


def unread_bytes(descriptor: int) -> int:
    """The number of bytes that can be read."""
    (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))
    return int(count)


def _parse_records(data: bytes) -> Iterator[Record]:
    offset = 0
    while offset < len(data):
        watch, mask, _, length = _HEAD.unpack_from(data, offset)
        begin = offset + _HEAD.size
        offset = begin + length
        yield Record(watch, mask, os.fsdecode(data[begin:offset].split(b"\0", 1)[0]), offset)


def _check_result(answer: int) -> int:
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return answer


#: Directories in one watch. They use kernel memory and the user's inotify limit.
MOST_DIRECTORIES = 4096
#: Scanning needs one descriptor per level.
MOST_DEEP = 64
#: Entries reported for one directory that was filled before it could be watched.
MOST_FOUND = 4096
#: Characters of paths in undelivered events.
MOST_TEXT = 1 << 22

Kind = Literal["created", "modified", "deleted", "moved", "overflow"]
_KINDS: tuple[tuple[int, Kind], ...] = (
    (CREATE | MOVED_TO, "created"),
    (MODIFY | ATTRIB, "modified"),
    (DELETE, "deleted"),
    (MOVED_FROM, "moved"),
)


@dataclass(frozen=True, slots=True)
class FileEvent:
    """`path` is relative to the work directory; in a mount it is absolute, as the guest sees it.

    A rename is "moved" for the old path and "created" for the new one. "overflow": events below `path` were lost.
    """

    path: str
    kind: Kind


class FileWatch:
    """Watches from construction until `close`. `descriptor` can be polled; no method blocks.

    With `recursive`, call `gather` promptly: it adds new directories, and until then their content is not watched.
    Links are not followed: directories are opened name by name and watched by descriptor.
    """

    def __init__(self, root: Root, parts: Parts, prefix: str, *, recursive: bool) -> None:
        self._owned = Descriptors()
        if not sys.platform.startswith("linux"):
            raise BackendUnavailable("watching files needs Linux (inotify)")
        self._root, self._prefix, self.is_recursive = root, prefix, recursive
        self._directories: dict[int, Parts] = {}
        self._found: deque[FileEvent] = deque()
        self._text = 0
        #: Records that were read and not processed, each with the stream position of its end.
        self._records: deque[tuple[Record, int]] = deque()
        #: The position in the stream of records.
        self._read = 0
        #: For each new directory: its listed names, and the position up to which records of their creation are repeats.
        self._listed: dict[int, tuple[int, set[str]]] = {}
        #: Whether the watched directory was removed, so that there will be no more events.
        self.is_over = False
        self._base = parts
        with self._owned:
            try:
                self.descriptor = self._owned.open(_create_inotify)
                with root.directory(parts) as directory:
                    self._base_watch = self._add(directory, parts)
                    self._enter(directory, parts)
            except OSError as error:
                raise _refusal(error) from None

    @property
    def is_closed(self) -> bool:
        return self.descriptor not in self._owned

    @property
    def has_events(self) -> bool:
        return bool(self._found)

    @property
    def is_full(self) -> bool:
        """Whether the buffer is full; further events stay in the kernel's queue until some are read."""
        return len(self._found) > 2 * MOST_FOUND or self._text > MOST_TEXT

    def close(self) -> None:
        self._owned.close()

    def __del__(self) -> None:
        self._owned.close()

    def next_event(self) -> FileEvent | None:
        """The oldest event, or None. Consecutive duplicates are merged."""
        if not self._found:
            return None
        event = self._found.popleft()
        self._text -= len(event.path)
        return event

    def forget(self) -> None:
        """Drop the events that were gathered and not read."""
        self._found.clear()
        self._records.clear()
        self._text = 0

    def gather(self) -> None:
        """Process a bounded number of kernel records and start watching new directories."""
        if not self._records:
            with suppress(BlockingIOError):
                data = os.read(self.descriptor, _BUFFER)
                self._records.extend((record, self._read + record.end) for record in _parse_records(data))
                self._read += len(data)
        while self._records and not self.is_full:
            self._process(*self._records.popleft())
        self._listed = {watch: item for watch, item in self._listed.items() if item[0] > self._read or self._records}

    def _process(self, record: Record, position: int) -> None:
        if record.mask & OVERFLOW:
            self._emit(self._base, "overflow")
            self._rescan()
            return
        directory = self._directories.get(record.watch)
        if directory is None:
            return
        if record.mask & IGNORED:
            del self._directories[record.watch]
            self.is_over = self.is_over or record.watch == self._base_watch
        elif record.name and not is_temporary_name(record.name) and not self._was_listed(record, position):
            self._process_named(record, (*directory, record.name))

    def _was_listed(self, record: Record, position: int) -> bool:
        """Whether the creation was reported already, because the directory was listed after it."""
        until, names = self._listed.get(record.watch, (0, set()))
        if position > until or record.name not in names or record.mask & (MODIFY | ATTRIB):
            return False
        names.discard(record.name)  # later events for that name are reported
        return bool(record.mask & (CREATE | MOVED_TO))

    def _process_named(self, record: Record, parts: Parts) -> None:
        is_directory = bool(record.mask & IS_DIRECTORY)
        if is_directory and record.mask & MOVED_FROM:
            self._forget_below(parts)
        for bits, kind in _KINDS:
            if record.mask & bits:
                self._emit(parts, kind)
        if is_directory and self.is_recursive and record.mask & (CREATE | MOVED_TO):
            self._follow(parts)

    def _follow(self, parts: Parts) -> None:
        """Watch a new directory, unless it was removed or replaced meanwhile."""
        with suppress(SandboxError, OSError), self._root.directory(parts) as directory:
            known = set(self._directories)
            watch = self._try_add(directory, parts)
            if watch is not None and watch not in known:
                self._enter(directory, parts, watch)

    def _enter(self, directory: int, parts: Parts, new: int | None = None) -> None:
        """Watch all directories below. `new` is the watch of a new directory, whose existing entries are reported."""
        if not self.is_recursive:
            return
        names: set[str] = set()
        with os.scandir(directory) as entries:
            for entry in entries:
                if is_temporary_name(entry.name):
                    continue
                below = (*parts, entry.name)
                if new is not None:
                    if len(names) >= MOST_FOUND:
                        self._emit(parts, "overflow")
                        break
                    names.add(entry.name)
                    self._emit(below, "created")
                is_directory = entry.is_dir(follow_symlinks=False)
                if is_directory and not self._descend(directory, entry.name, below, is_new=new is not None):
                    break
        if new is not None and (waiting := unread_bytes(self.descriptor)):
            self._listed[new] = (self._read + waiting, names)

    def _descend(self, directory: int, name: str, below: Parts, *, is_new: bool) -> bool:
        """Watch one subdirectory, and report its entries if it is new. False if no more can be watched."""
        try:
            child = open_one(directory, name, OPEN_DIRECTORY)
        except OSError as error:
            return error.errno not in (errno.EMFILE, errno.ENFILE)
        with closing_fd(child):
            watch = self._try_add(child, below)
            if watch is not None:
                self._enter(child, below, watch if is_new else None)
            return watch is not None

    def _try_add(self, directory: int, parts: Parts) -> int | None:
        is_deep = len(parts) - len(self._base) > MOST_DEEP
        if len(self._directories) < MOST_DIRECTORIES and not is_deep:
            try:
                return self._add(directory, parts)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                    raise
        self._emit(parts[:-1], "overflow")
        return None

    def _add(self, directory: int, parts: Parts) -> int:
        watch = add_watch(self.descriptor, directory)
        self._directories[watch] = parts
        return watch

    def _forget_below(self, parts: Parts) -> None:
        """Stop watching a moved directory. If it stays in the tree, its new name is watched again."""
        gone = [watch for watch, known in self._directories.items() if known[: len(parts)] == parts]
        for watch in gone:
            _libc().inotify_rm_watch(self.descriptor, watch)  # no error if the kernel has already removed it
            del self._directories[watch]

    def _rescan(self) -> None:
        """After lost records: watch new directories. The kernel reports removed ones as IGNORED."""
        with suppress(SandboxError, OSError), self._root.directory(self._base) as directory:
            self._enter(directory, self._base)

    def _emit(self, parts: Parts, kind: Kind) -> None:
        if self.is_full:
            kind, parts = "overflow", self._base
        path = printable("/".join(parts)) or "."
        event = FileEvent(path if not self._prefix else f"{self._prefix}/{path}", kind)
        if self._found and self._found[-1] == event:
            return
        self._found.append(event)
        self._text += len(event.path)


def _refusal(error: OSError) -> Exception:
    """The typed error. inotify reports its per-user limits as EMFILE and ENOSPC."""
    if isinstance(error, SandboxError):
        return error
    if error.errno == errno.EMFILE:
        hint = "close some watches, or raise fs.inotify.max_user_instances, or `ulimit -n`"
        return ExecutionFailed("could not watch the directory: too many inotify instances of this user", hint=hint)
    if error.errno == errno.ENOSPC:
        hint = "watch less, or raise fs.inotify.max_user_watches"
        return ExecutionFailed("could not watch the directory: too many inotify watches of this user", hint=hint)
    return host_failure(error, "watch the directory")
