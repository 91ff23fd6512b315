"""Watched directories of the E2B file service (`file_server.py`), as one inotify instance. Runs inside the cage."""

import errno
import os
import struct

#: Bounds on one answer, a line that has each path several times: how many entries, and bytes of their paths.
PAGE, MOST_BYTES = 1000, 1 << 20
MOST_WATCHED = 2000
MOST_EVENTS = 10_000
#: How the temporary file of an upload ends, by whether it makes a file or replaces one.
NEW, CHANGED = ".new-upload", ".changed-upload"
#: inotify: MODIFY, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE, ONLYDIR.
EVENTS = 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x01000000
CREATED, MOVED_FROM, IGNORED, IS_DIRECTORY = 0x180, 0x40, 0x8000, 0x40000000
KINDS = ((CREATED, "CREATE"), (0x200, "REMOVE"), (0x2, "WRITE"), (0x40, "RENAME"), (0x4, "CHMOD"))


class Watches:
    """Events in directories. All watchers share one inotify instance: their number is limited per user."""

    def __init__(self):
        import ctypes

        self._libc, self._errno = ctypes.CDLL(None, use_errno=True), ctypes.get_errno
        self._queue = self._check(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        self._watchers = {}
        #: By watch descriptor: the path of the directory for each watcher.
        self._places = {}
        #: The last upload that was renamed: the kernel's cookie of it, and the events to report.
        self._upload = 0, []

    def begin(self, identity, path, is_recursive):
        root = os.path.realpath(path)
        if not os.path.isdir(root):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory")
        self._watchers[identity] = root, is_recursive, []
        self._enter(identity, root, reports=False)

    def take(self, identity):
        if identity not in self._watchers:
            raise FileNotFoundError(errno.ENOENT, "watcher not found")
        self._drain()
        _, _, events = self._watchers[identity]
        page, size = [], 0
        while events and len(page) < PAGE and size < MOST_BYTES:
            page.append(events.pop(0))
            size += 8 * len(page[-1][0])
        return page, bool(events)

    def end(self, identity):
        self._watchers.pop(identity, None)
        for number, places in list(self._places.items()):
            if places.pop(identity, None) is not None and not places:
                del self._places[number]
                self._libc.inotify_rm_watch(self._queue, number)

    def _check(self, number):
        if number < 0:
            raise OSError(self._errno(), "cannot watch: " + os.strerror(self._errno()))
        return number

    def _enter(self, identity, directory, reports):
        """Watches first and scans then: an event in between is reported twice rather than lost."""
        if len(self._places) >= MOST_WATCHED:
            raise OSError(errno.ENOSPC, f"cannot watch more than {MOST_WATCHED} directories")
        number = self._check(self._libc.inotify_add_watch(self._queue, os.fsencode(directory), EVENTS))
        self._places.setdefault(number, {})[identity] = directory
        _, is_recursive, _ = self._watchers[identity]
        for entry in os.scandir(directory) if is_recursive else ():
            if reports and not entry.name.endswith((NEW, CHANGED)):
                self._report(identity, entry.path, "CREATE")
                if _has_content(entry):
                    self._report(identity, entry.path, "WRITE")
            if entry.is_dir(follow_symlinks=False):
                self._enter_below(identity, entry.path, reports)

    def _enter_below(self, identity, directory, reports):
        try:
            self._enter(identity, directory, reports)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return  # it was removed, or is unreadable

    def _drain(self):
        while True:
            try:
                data = os.read(self._queue, 64 * 1024)
            except BlockingIOError:
                return
            while data:
                number, mask, cookie, size = struct.unpack_from("iIII", data)
                name = os.fsdecode(data[16 : 16 + size].rstrip(b"\0"))
                data = data[16 + size :]
                self._handle(number, mask, cookie, name)

    def _handle(self, number, mask, cookie, name):
        if mask & IGNORED:
            self._places.pop(number, None)
        kinds = [kind for bits, kind in KINDS if mask & bits]
        if name.endswith((NEW, CHANGED)):
            # The events of a file that envd writes in place, reported when the upload is complete.
            if mask & MOVED_FROM:
                self._upload = cookie, ["CREATE", "CHMOD", "WRITE"] if name.endswith(NEW) else ["WRITE"]
            return
        if cookie and cookie == self._upload[0]:
            kinds = self._upload[1]
        for identity, directory in list(self._places.get(number, {}).items()) if name else ():
            path = os.path.join(directory, name)
            for kind in kinds:
                self._report(identity, path, kind)
            if mask & IS_DIRECTORY and mask & CREATED and self._watchers[identity][1]:
                try:
                    self._enter_below(identity, path, reports=True)
                except OSError:
                    continue  # too many directories: those already watched stay

    def _report(self, identity, path, kind):
        root, _, events = self._watchers[identity]
        event = [os.path.relpath(path, root), kind]
        if len(events) < MOST_EVENTS and events[-1:] != [event]:
            events.append(event)


def _has_content(entry):
    """Whether it is a file that is not empty. It may have been removed since it was listed."""
    try:
        return entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_size > 0
    except FileNotFoundError:
        return False
