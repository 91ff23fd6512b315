"""What happens to files, seen from the host: `FileEvent`s of a directory, or of all that are in it.

The guest makes the events, so everything is bounded: the kernel's queue, the directories that are watched, and what one
new directory may hold. Whoever meets a bound is told "overflow": something was missed, look again.
"""

from __future__ import annotations

import errno
import os
import sys
from collections import deque
from collections.abc import Iterator
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
    """Watches from the moment that it is made until `close`. `descriptor` can be polled; `events` never blocks.

    No link is followed: directories are opened name by name, and what is watched is what was opened.
    """

    def __init__(self, root: Root, parts: Parts, prefix: str, *, recursive: bool) -> None:
        self._owned = Descriptors()
        if not sys.platform.startswith("linux"):
            raise BackendUnavailable("this system cannot watch files as Linux does")
        self._root, self._prefix, self._is_recursive = root, prefix, recursive
        self._directories: dict[int, Parts] = {}
        self._found: deque[FileEvent] = deque()
        self._base = parts
        with self._owned:
            try:
                self.descriptor = self._owned.opened(inotify.opened)
                with root.directory(parts) as directory:
                    self._base_watch = self._add(directory, parts)
                    self._enter(directory, parts, tells=False)
            except OSError as error:
                raise _refusal(error) from None

    @property
    def is_closed(self) -> bool:
        return self.descriptor not in self._owned

    def close(self) -> None:
        self._owned.close()

    def __del__(self) -> None:
        self._owned.close()

    def events(self) -> Iterator[FileEvent]:
        """What has happened since. The same twice in a row is told once."""
        with suppress(BlockingIOError):
            for record in inotify.read(self.descriptor):
                self._take(record)
        last = None
        while self._found:
            event = self._found.popleft()
            if event != last:
                yield event
            last = event

    def _take(self, record: inotify.Record) -> None:
        if record.mask & inotify.OVERFLOW:
            self._tell(self._base, "overflow")
            self._look_again()
            return
        directory = self._directories.get(record.watch)
        if directory is None:
            return
        if record.mask & inotify.IGNORED:
            del self._directories[record.watch]
            if record.watch == self._base_watch:
                self.close()
            return
        if record.name:
            self._take_named(record, (*directory, record.name))

    def _take_named(self, record: inotify.Record, parts: Parts) -> None:
        is_directory = bool(record.mask & inotify.IS_DIRECTORY)
        if is_directory and record.mask & inotify.MOVED_FROM:
            self._forget_below(parts)
        for bits, kind in _KINDS:
            if record.mask & bits:
                self._tell(parts, kind)
        if is_directory and self._is_recursive and record.mask & (inotify.CREATE | inotify.MOVED_TO):
            self._follow(parts)

    def _follow(self, parts: Parts) -> None:
        """A directory that has come, unless it is gone again, or something else stands there by now."""
        with suppress(SandboxError, OSError), self._root.directory(parts) as directory:
            if self._add_or_tell(directory, parts):
                self._enter(directory, parts, tells=True)

    def _enter(self, directory: int, parts: Parts, *, tells: bool) -> None:
        """All directories below. What was in a new one before it was watched is told, too."""
        if not self._is_recursive:
            return
        found = 0
        with os.scandir(directory) as entries:
            for entry in entries:
                found += 1
                if tells and found > MOST_FOUND:
                    self._tell(parts, "overflow")
                    return
                below = (*parts, entry.name)
                if tells:
                    self._tell(below, "created")
                if entry.is_dir(follow_symlinks=False) and not self._descend(directory, entry.name, below, tells):
                    return

    def _descend(self, directory: int, name: str, below: Parts, tells: bool) -> bool:
        """False where there is no room for another."""
        try:
            child = open_one(directory, name, OPEN_DIRECTORY)
        except OSError as error:
            return error.errno not in (errno.EMFILE, errno.ENFILE)
        try:
            if not self._add_or_tell(child, below):
                return False
            self._enter(child, below, tells=tells)
            return True
        finally:
            os.close(child)

    def _add_or_tell(self, directory: int, parts: Parts) -> bool:
        is_deep = len(parts) - len(self._base) > MOST_DEEP
        if len(self._directories) < MOST_DIRECTORIES and not is_deep:
            try:
                self._add(directory, parts)
                return True
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM):
                    raise
        self._tell(parts[:-1], "overflow")
        return False

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
            self._enter(directory, self._base, tells=False)

    def _tell(self, parts: Parts, kind: Kind) -> None:
        if len(self._found) > 2 * MOST_FOUND:
            kind, parts = "overflow", self._base
            if self._found[-1].kind == "overflow":
                return
        path = printable("/".join(parts)) or "."
        self._found.append(FileEvent(path if not self._prefix else f"{self._prefix}/{path}", kind))


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
