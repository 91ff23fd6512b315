"""What happens to files, seen from the host: `FileEvent`s of a directory, or of all that are in it.

The guest makes the events, so everything is bounded: the kernel's queue, the directories that are watched, and what one
new directory may hold. Whoever meets a bound is told "overflow": something was missed, look again.
"""

from __future__ import annotations

import errno
import os
import sys
from collections import deque
from contextlib import suppress
from typing import Literal

from warmcell.core.errors import BackendUnavailable, ExecutionFailed, SandboxError
from warmcell.core.records import dataclass
from warmcell.lifetime.descriptors import Descriptors, host_failure
from warmcell.workspace import inotify
from warmcell.workspace.names import Parts, printable
from warmcell.workspace.root import OPEN_DIRECTORY, Root, open_one

#: Directories in one watch. The kernel's memory for them is not the guest's, and a user may have but so many.
MOST_DIRECTORIES = 4096
#: Each level is a descriptor while they are looked through.
MOST_DEEP = 64
#: Names that are told of one directory which was there, with all that is in it, before it could be watched.
MOST_FOUND = 4096
#: Characters of paths that wait to be told: a name may have 255, at every level.
MOST_TEXT = 1 << 22

Kind = Literal["created", "modified", "deleted", "moved", "overflow"]
_KINDS: tuple[tuple[int, Kind], ...] = (
    (inotify.CREATE | inotify.MOVED_TO, "created"),
    (inotify.MODIFY | inotify.ATTRIB, "modified"),
    (inotify.DELETE, "deleted"),
    (inotify.MOVED_FROM, "moved"),
)


@dataclass(frozen=True, slots=True)
class FileEvent:
    """`path` is relative to the work directory (of a mount: absolute, as the guest sees it).

    "moved" is where something was, and "created" where it is now, or where something appeared. "overflow": below `path`
    more happened than could be told.
    """

    path: str
    kind: Kind


class FileWatch:
    """Watches from the moment that it is made until `close`. `descriptor` can be polled; nothing here blocks.

    Where it is recursive, somebody must `gather` as things happen, or what is made in new directories is not seen.
    No link is followed: directories are opened name by name, and what is watched is what was opened.
    """

    def __init__(self, root: Root, parts: Parts, prefix: str, *, recursive: bool) -> None:
        self._owned = Descriptors()
        if not sys.platform.startswith("linux"):
            raise BackendUnavailable("this system cannot watch files as Linux does")
        self._root, self._prefix, self.is_recursive = root, prefix, recursive
        self._directories: dict[int, Parts] = {}
        self._found: deque[FileEvent] = deque()
        self._text = 0
        #: What was read of the kernel's and not taken, each with where it ended among all bytes that were read.
        self._records: deque[tuple[inotify.Record, int]] = deque()
        #: How many those are, and up to which of them a new directory's names may be told a second time.
        self._read = 0
        self._listed: dict[int, tuple[int, set[str]]] = {}
        #: Whether the directory itself has gone, so that nothing more can happen in it.
        self.is_over = False
        self._base = parts
        with self._owned:
            try:
                self.descriptor = self._owned.opened(inotify.opened)
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
        """As much as is kept was gathered: until somebody has read, the rest is left to the kernel."""
        return len(self._found) > 2 * MOST_FOUND or self._text > MOST_TEXT

    def close(self) -> None:
        self._owned.close()

    def __del__(self) -> None:
        self._owned.close()

    def next_event(self) -> FileEvent | None:
        """The oldest that was gathered. The same twice in a row is told once."""
        if not self._found:
            return None
        event = self._found.popleft()
        self._text -= len(event.path)
        return event

    def forget(self) -> None:
        """What was gathered and not read."""
        self._found.clear()
        self._records.clear()
        self._text = 0

    def gather(self) -> None:
        """What has happened since, a bounded part of it; directories that have come are watched from here on."""
        if not self._records:
            with suppress(BlockingIOError):
                self._read_more()
        while self._records and not self.is_full:
            self._take(*self._records.popleft())
        self._listed = {watch: item for watch, item in self._listed.items() if item[0] > self._read or self._records}

    def _read_more(self) -> None:
        data = inotify.read(self.descriptor)
        self._records.extend((record, self._read + record.end) for record in inotify.records(data))
        self._read += len(data)

    def _take(self, record: inotify.Record, position: int) -> None:
        if record.mask & inotify.OVERFLOW:
            self._tell(self._base, "overflow")
            self._look_again()
            return
        directory = self._directories.get(record.watch)
        if directory is None:
            return
        if record.mask & inotify.IGNORED:
            del self._directories[record.watch]
            self.is_over = self.is_over or record.watch == self._base_watch
        elif record.name and not self._was_listed(record, position):
            self._take_named(record, (*directory, record.name))

    def _was_listed(self, record: inotify.Record, position: int) -> bool:
        """Whether its name was told as found: made after its directory was watched, and before that was looked into."""
        until, names = self._listed.get(record.watch, (0, set()))
        if position > until or record.name not in names or record.mask & (inotify.MODIFY | inotify.ATTRIB):
            return False
        names.discard(record.name)  # what happens to that name afterwards is told
        return bool(record.mask & (inotify.CREATE | inotify.MOVED_TO))

    def _take_named(self, record: inotify.Record, parts: Parts) -> None:
        is_directory = bool(record.mask & inotify.IS_DIRECTORY)
        if is_directory and record.mask & inotify.MOVED_FROM:
            self._forget_below(parts)
        for bits, kind in _KINDS:
            if record.mask & bits:
                self._tell(parts, kind)
        if is_directory and self.is_recursive and record.mask & (inotify.CREATE | inotify.MOVED_TO):
            self._follow(parts)

    def _follow(self, parts: Parts) -> None:
        """A directory that has come, unless it is gone again, or something else stands there by now."""
        with suppress(SandboxError, OSError), self._root.directory(parts) as directory:
            known = set(self._directories)
            watch = self._add_or_tell(directory, parts)
            if watch is not None and watch not in known:
                self._enter(directory, parts, watch)

    def _enter(self, directory: int, parts: Parts, new: int | None = None) -> None:
        """All directories below. What was in a new one, which has this watch, before it was watched is told, too."""
        if not self.is_recursive:
            return
        names: set[str] = set()
        with os.scandir(directory) as entries:
            for entry in entries:
                below = (*parts, entry.name)
                if new is not None:
                    if len(names) >= MOST_FOUND:
                        self._tell(parts, "overflow")
                        break
                    names.add(entry.name)
                    self._tell(below, "created")
                is_directory = entry.is_dir(follow_symlinks=False)
                if is_directory and not self._descend(directory, entry.name, below, tells=new is not None):
                    break
        if new is not None and (waiting := inotify.waiting(self.descriptor)):
            self._listed[new] = (self._read + waiting, names)

    def _descend(self, directory: int, name: str, below: Parts, *, tells: bool) -> bool:
        """False where there is no room for another."""
        try:
            child = open_one(directory, name, OPEN_DIRECTORY)
        except OSError as error:
            return error.errno not in (errno.EMFILE, errno.ENFILE)
        try:
            watch = self._add_or_tell(child, below)
            if watch is not None:
                self._enter(child, below, watch if tells else None)
            return watch is not None
        finally:
            os.close(child)

    def _add_or_tell(self, directory: int, parts: Parts) -> int | None:
        is_deep = len(parts) - len(self._base) > MOST_DEEP
        if len(self._directories) < MOST_DIRECTORIES and not is_deep:
            try:
                return self._add(directory, parts)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                    raise
        self._tell(parts[:-1], "overflow")
        return None

    def _add(self, directory: int, parts: Parts) -> int:
        watch = inotify.add(self.descriptor, directory)
        self._directories[watch] = parts
        return watch

    def _forget_below(self, parts: Parts) -> None:
        """It goes on under another name, which is told if it stays in sight."""
        gone = [watch for watch, known in self._directories.items() if known[: len(parts)] == parts]
        for watch in gone:
            inotify.remove(self.descriptor, watch)
            del self._directories[watch]

    def _look_again(self) -> None:
        """After records were lost: directories that came are watched, too. Those that went are told as ignored."""
        with suppress(SandboxError, OSError), self._root.directory(self._base) as directory:
            self._enter(directory, self._base)

    def _tell(self, parts: Parts, kind: Kind) -> None:
        if self.is_full:
            kind, parts = "overflow", self._base
        path = printable("/".join(parts)) or "."
        event = FileEvent(path if not self._prefix else f"{self._prefix}/{path}", kind)
        if self._found and self._found[-1] == event:
            return
        self._found.append(event)
        self._text += len(event.path)


def _refusal(error: OSError) -> Exception:
    """Inotify's own limits are per user, and are told by errnos that mean other things elsewhere."""
    if isinstance(error, SandboxError):
        return error
    if error.errno == errno.EMFILE:
        hint = "close some watches, or raise fs.inotify.max_user_instances, or `ulimit -n`"
        return ExecutionFailed("could not watch the directory: this user has as many watches as it may have", hint=hint)
    if error.errno == errno.ENOSPC:
        hint = "watch less, or raise fs.inotify.max_user_watches"
        return ExecutionFailed("could not watch the directory: this user watches as much as it may watch", hint=hint)
    return host_failure(error, "watch the directory")
