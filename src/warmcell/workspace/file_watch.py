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
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from warmcell.core.errors import BackendUnavailable, ExecutionFailed, PathTraversal, SandboxError
from warmcell.core.records import dataclass
from warmcell.lifetime.descriptors import Descriptors, host_failure
from warmcell.workspace.errors import FileMissing, WrongKind
from warmcell.workspace.names import MAX_PATH_BYTES, Parts, printable
from warmcell.workspace.open_listing import OpenListing
from warmcell.workspace.root import Root, is_temporary_name
from warmcell.workspace.watched_directories import WatchedDirectories

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
#: How deep a tree is watched.
MOST_DEEP = 64
#: Entries listed and directories watched by the constructor; `gather` does the rest.
MOST_AT_ONCE = 1 << 17
#: Entries reported for one directory that was filled before it could be watched.
MOST_FOUND = 4096
#: Characters of paths in undelivered events.
MOST_TEXT = 1 << 22
#: How long one call of `gather` may take: an event loop calls it, for a guest that renames large trees all the time.
SLICE_SECONDS = 0.002

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

    Of a very large tree the constructor watches a part. `gather` watches the rest and then reports an "overflow".
    With `recursive`, call `gather` promptly: it adds new directories, and until then their content is not watched.
    Links are not followed: a directory is opened without them and watched by descriptor.

    What a record causes is done in steps, before the next record. Between two steps at most one directory is open.
    """

    def __init__(self, root: Root, parts: Parts, prefix: str, *, recursive: bool) -> None:
        self._owned = Descriptors()
        self._listing: OpenListing | None = None
        if not sys.platform.startswith("linux"):
            raise BackendUnavailable("watching files needs Linux (inotify)")
        self._root, self._prefix, self.is_recursive = root, prefix, recursive
        self._directories = WatchedDirectories()
        self._found: deque[FileEvent] = deque()
        self._text = 0
        #: Records that were read and not processed, each with the stream position of its end.
        self._records: deque[tuple[Record, int]] = deque()
        #: The position in the stream of records.
        self._read = 0
        #: For each new directory: its listed names, and the position up to which records of their creation are repeats.
        self._listed: dict[int, tuple[int, set[str]]] = {}
        #: Directories to watch and to list, and whether their entries are reported.
        self._waiting: list[tuple[Parts, bool]] = []
        #: A moved directory that is no longer watched, nor what is below it.
        self._moved: Parts | None = None
        #: After lost records: the watches whose directories were not found again.
        self._stale: set[int] = set()
        self._has_lost = self._was_removed = False
        self._base = parts
        with self._owned:
            try:
                self.descriptor = self._owned.open(_create_inotify)
                with root.directory(parts) as directory:
                    self._base_watch = add_watch(self.descriptor, directory)
            except OSError as error:
                raise _refusal(error) from None
            self._directories.place(self._base_watch, parts)
            if recursive:
                self._waiting.append((parts, False))
            for _ in range(MOST_AT_ONCE):
                if not self._step():
                    break
            self._has_lost = self.has_work

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

    @property
    def is_over(self) -> bool:
        """Whether the watched directory was removed, so that there will be no more events."""
        return self._was_removed and not self.has_work

    def close(self) -> None:
        self._owned.close()
        self._stop_listing()

    def __del__(self) -> None:
        self.close()

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

    def gather(self) -> bool:
        """Process kernel records and start watching new directories, for a short time. Returns whether work is left."""
        until = time.monotonic() + SLICE_SECONDS
        if not self.has_work:
            self._read_records()
        while not self.is_full and self._step():
            if time.monotonic() > until:
                return self.has_work and not self.is_full
        return False

    @property
    def has_work(self) -> bool:
        """Whether `gather` has directories to watch or records to process."""
        scan = self._listing or self._moved is not None or self._waiting or self._stale or self._has_lost
        return bool(scan or self._records)

    def _step(self) -> bool:
        """Do a small part of what the last record caused, or process the next one. False if there is nothing to do."""
        if self._listing is not None:
            self._list_one(self._listing)
        elif self._moved is not None:
            self._forget_one_below(self._moved)
        elif self._waiting:
            self._enter(*self._waiting.pop())
        elif self._stale:
            self._remove(self._stale.pop())
        elif self._has_lost:
            self._has_lost = False
            self._emit(self._base, "overflow")  # now, that everything is watched again
        elif self._records:
            self._process(*self._records.popleft())
        else:
            return False
        return True

    def _read_records(self) -> None:
        self._listed = {watch: item for watch, item in self._listed.items() if item[0] > self._read}
        with suppress(BlockingIOError):
            data = os.read(self.descriptor, _BUFFER)
            self._records.extend((record, self._read + record.end) for record in _parse_records(data))
            self._read += len(data)

    def _process(self, record: Record, position: int) -> None:
        if record.mask & OVERFLOW:
            self._rescan()
            return
        directory = self._directories.get(record.watch)
        if directory is None:
            return
        if record.mask & IGNORED:
            self._directories.forget(record.watch)
            self._was_removed = self._was_removed or record.watch == self._base_watch
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
        for bits, kind in _KINDS:
            if record.mask & bits:
                self._emit(parts, kind)
        if self.is_recursive and record.mask & IS_DIRECTORY:
            if record.mask & MOVED_FROM:
                self._moved = parts
            if record.mask & (CREATE | MOVED_TO):
                self._waiting.append((parts, True))

    def _rescan(self) -> None:
        """After lost records: watch what is there now, and nothing else. Then report the loss."""
        self._has_lost, self._stale = True, set(self._directories)
        self._waiting.append((self._base, False))

    def _enter(self, parts: Parts, is_new: bool) -> None:
        """Watch a directory and begin to list it, unless it was removed or replaced meanwhile."""
        is_many = len(self._directories) >= MOST_DIRECTORIES and not self._directories.has(parts)
        is_long = sum(map(len, map(os.fsencode, parts))) + len(parts) > MAX_PATH_BYTES
        if is_many or is_long or len(parts) - len(self._base) > MOST_DEEP:
            self._report_loss(parts)
            return
        try:
            with self._root.directory(parts) as directory:
                self._watch_and_list(directory, parts, is_new)
        except (FileMissing, WrongKind, PathTraversal):
            self._was_removed = self._was_removed or parts == self._base
        except (SandboxError, OSError):  # too many descriptors or watches, or a directory that is not readable
            self._stale.clear()  # directories below it may still be there
            self._report_loss(parts)

    def _watch_and_list(self, directory: int, parts: Parts, is_new: bool) -> None:
        watch = add_watch(self.descriptor, directory)
        if parts == self._base and watch != self._base_watch:  # another directory has its name now
            _libc().inotify_rm_watch(self.descriptor, watch)
            self._was_removed = True
            return
        was_here = self._directories.get(watch) == parts
        self._directories.place(watch, parts)
        self._stale.discard(watch)
        if self.is_recursive and not (is_new and was_here):
            self._listing = OpenListing(directory, parts, watch if is_new else None)

    def _list_one(self, listing: OpenListing) -> None:
        """Take one entry of an open directory."""
        try:
            entry = next(listing.entries, None)
            is_directory = entry is not None and entry.is_dir(follow_symlinks=False)
        except OSError:
            self._cut_short(listing)
            return
        if entry is None:
            self._end_listing(listing)
        elif len(listing.names) >= MOST_FOUND or (is_directory and len(self._waiting) >= MOST_DIRECTORIES):
            self._cut_short(listing)
        elif not is_temporary_name(entry.name):
            below, is_new = (*listing.parts, entry.name), listing.watch is not None
            if is_new:
                listing.names.add(entry.name)
                self._emit(below, "created")
            if is_directory:
                self._waiting.append((below, is_new))

    def _cut_short(self, listing: OpenListing) -> None:
        self._stale.clear()  # directories that were not listed may still be there
        self._emit(listing.parts, "overflow")
        self._end_listing(listing)

    def _end_listing(self, listing: OpenListing) -> None:
        self._stop_listing()
        if listing.watch is not None and (waiting := unread_bytes(self.descriptor)):
            self._listed[listing.watch] = (self._read + waiting, listing.names)

    def _stop_listing(self) -> None:
        listing, self._listing = self._listing, None
        if listing is not None:
            listing.close()

    def _forget_one_below(self, parts: Parts) -> None:
        """Stop watching a moved directory. If it stays in the tree, its new name is watched again."""
        first = self._directories.first_below(parts)
        if first is None:
            self._moved = None
        else:
            self._remove(first)

    def _remove(self, watch: int) -> None:
        _libc().inotify_rm_watch(self.descriptor, watch)  # no error if the kernel has already removed it
        self._directories.forget(watch)

    def _report_loss(self, parts: Parts) -> None:
        """Report that a directory is not watched, as a loss in the one above: one event for many directories."""
        self._emit(parts[: max(len(parts) - 1, len(self._base))], "overflow")

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
