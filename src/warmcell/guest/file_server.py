"""Runs inside the cage, for the E2B door: does with files what it is asked to, one line of JSON for each request.

It has no more rights than any guest, so every path is as good as another, links and all; the host believes nothing that
it says beyond what it is: data about this sandbox.
"""

import base64
import errno
import grp
import json
import os
import pwd
import shutil
import stat
import struct
import sys

HOME = os.environ.get("HOME", "/home/user")
PAGE = 1000
CHUNK = 256 * 1024
#: Of the paths in one answer, which is a line of bounded length and says a path several times.
MOST_BYTES = 1 << 20
MOST_ENTRIES = 100_000
#: By path and depth: what was found for somebody who has not yet had all of it.
LISTED = {}
MOST_LISTINGS = 4
MARK = b"user.e2b."
MOST_WATCHED = 2000
MOST_EVENTS = 10_000
WATCHES = {}
#: The kernel's: MODIFY, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE, and only of directories.
EVENTS = 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x01000000
CREATED, IGNORED, IS_DIRECTORY = 0x180, 0x8000, 0x40000000
KINDS = ((CREATED, "CREATE"), (0x200, "REMOVE"), (0x2, "WRITE"), (0x40, "RENAME"), (0x4, "CHMOD"))


def resolved(path):
    if path == "~" or path.startswith("~/"):
        path = HOME + path[1:]
    return os.path.normpath(os.path.join(HOME, path))


def name_of(lookup, number, own):
    if number == own:
        return "user"
    try:
        return lookup(number)[0]
    except KeyError:
        return str(number)


def metadata_of(path):
    found = {}
    try:
        for name in os.listxattr(path):
            if name.startswith(MARK.decode()):
                found[name[len(MARK) :]] = os.getxattr(path, name).decode("utf-8", "replace")
    except OSError:
        pass
    return found


def entry(path):
    look = os.lstat(path)
    target = None
    if stat.S_ISLNK(look.st_mode):
        target = os.path.realpath(path)
        try:
            look = os.stat(path)
        except OSError:
            pass
    kind = "DIRECTORY" if stat.S_ISDIR(look.st_mode) else "SYMLINK" if stat.S_ISLNK(look.st_mode) else "FILE"
    seconds, rest = divmod(look.st_mtime_ns, 10**9)
    found = {
        "name": os.path.basename(path),
        "path": path,
        "type": "FILE_TYPE_" + kind,
        "size": look.st_size,
        "mode": stat.S_IMODE(look.st_mode),
        "permissions": stat.filemode(look.st_mode),
        "owner": name_of(pwd.getpwuid, look.st_uid, os.getuid()),
        "group": name_of(grp.getgrgid, look.st_gid, os.getgid()),
        "seconds": seconds,
        "nanoseconds": rest,
        "metadata": metadata_of(path),
    }
    if target is not None:
        found["target"] = target
    return found


def op_stat(asked):
    return {"entry": entry(resolved(asked["path"]))}


def op_list(asked):
    """All down to a depth, a page at a time: the next one begins at `next`. What cannot be looked at is left out."""
    key = asked["path"], asked["depth"]
    found = LISTED.pop(key, None) if asked["offset"] else None
    found = below(*key) if found is None else found
    page, size, index = [], 0, asked["offset"]
    while index < len(found) and len(page) < PAGE and size < MOST_BYTES:
        try:
            page.append(entry(found[index]))
            size += 8 * len(found[index])
        except OSError:
            pass
        index += 1
    if index < len(found):
        LISTED[key] = found
        for old in list(LISTED)[:-MOST_LISTINGS]:
            del LISTED[old]
    return {"entries": page, "next": index, "more": index < len(found)}


def below(path, most_depth):
    """The paths, sorted; not many more than somebody would want to have."""
    root, found = resolved(path), []
    if not os.path.isdir(root):
        raise NotADirectoryError(errno.ENOTDIR, "not a directory")
    root = os.path.realpath(root)
    for directory, names, files in os.walk(root):
        depth = len(os.path.relpath(directory, root).split(os.sep)) if directory != root else 0
        found += [os.path.join(directory, name) for name in sorted(names + files)]
        names.sort()
        if depth + 1 >= most_depth:
            names.clear()
        if len(found) > MOST_ENTRIES:
            break
    found.sort()
    return found


def op_mkdir(asked):
    path = resolved(asked["path"])
    if os.path.isdir(path):
        raise FileExistsError(errno.EEXIST, "exists already")
    os.makedirs(path)
    return {"entry": entry(path)}


def op_move(asked):
    source, target = resolved(asked["source"]), resolved(asked["destination"])
    os.lstat(source)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.move(source, target)
    return {"entry": entry(target)}


def op_remove(asked):
    path = resolved(asked["path"])
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
    return {}


def op_read(asked):
    path = resolved(asked["path"])
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "is a directory")
    # Opening a FIFO that nobody writes to must not hold up the next request.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        data = os.pread(descriptor, CHUNK, asked["offset"])
    finally:
        os.close(descriptor)
    return {"data": base64.b64encode(data).decode()}


def op_write(asked):
    """A chunk; the first one empties the file."""
    path, data = resolved(asked["path"]), base64.b64decode(asked["data"])
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "is a directory")
    if asked["offset"] == 0:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    is_new = not os.path.lexists(path)
    with open(path, "wb" if asked["offset"] == 0 else "ab") as file:
        if is_new:  # whoever watches hears of it as where envd does it: made, given its mode, filled
            os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode))
        file.write(data)
    return {}


def op_finish(asked):
    path = resolved(asked["path"])
    for name in os.listxattr(path) if hasattr(os, "listxattr") else []:
        if name.startswith(MARK.decode()):
            os.removexattr(path, name)
    for key, value in asked["metadata"].items():
        os.setxattr(path, MARK + key.encode(), value.encode())
    return {"entry": entry(path)}


class Watches:
    """What happens in directories. All watchers share one queue of the kernel: a user may have but so many."""

    def __init__(self):
        import ctypes

        self._libc, self._errno = ctypes.CDLL(None, use_errno=True), ctypes.get_errno
        self._queue = self._checked(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        self._watchers = {}
        #: By the kernel's number of a directory: whose it is, and its path as each of them has it.
        self._places = {}

    def begin(self, identity, path, is_recursive):
        root = os.path.realpath(resolved(path))
        if not os.path.isdir(root):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory")
        self._watchers[identity] = root, is_recursive, []
        self._enter(identity, root, tells=False)

    def taken(self, identity):
        if identity not in self._watchers:
            raise FileNotFoundError(errno.ENOENT, "there is no such watcher")
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

    def _checked(self, number):
        if number < 0:
            raise OSError(self._errno(), "cannot be watched: " + os.strerror(self._errno()))
        return number

    def _enter(self, identity, directory, tells):
        """Watched first and looked through then: what happens in between is told twice rather than never."""
        if len(self._places) >= MOST_WATCHED:
            raise OSError(errno.ENOSPC, f"more than {MOST_WATCHED} directories cannot be watched")
        number = self._checked(self._libc.inotify_add_watch(self._queue, os.fsencode(directory), EVENTS))
        self._places.setdefault(number, {})[identity] = directory
        _, is_recursive, _ = self._watchers[identity]
        for entry in os.scandir(directory) if is_recursive else ():
            if tells:
                self._tell(identity, entry.path, "CREATE")
                if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_size:
                    self._tell(identity, entry.path, "WRITE")
            if entry.is_dir(follow_symlinks=False):
                self._enter_below(identity, entry.path, tells)

    def _enter_below(self, identity, directory, tells):
        try:
            self._enter(identity, directory, tells)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return  # it has gone again, or is not to be read

    def _drain(self):
        while True:
            try:
                data = os.read(self._queue, 64 * 1024)
            except BlockingIOError:
                return
            while data:
                number, mask, _, size = struct.unpack_from("iIII", data)
                name = os.fsdecode(data[16 : 16 + size].rstrip(b"\0"))
                data = data[16 + size :]
                self._hear(number, mask, name)

    def _hear(self, number, mask, name):
        if mask & IGNORED:
            self._places.pop(number, None)
        for identity, directory in list(self._places.get(number, {}).items()) if name else ():
            path = os.path.join(directory, name)
            for bits, kind in KINDS:
                if mask & bits:
                    self._tell(identity, path, kind)
            if mask & IS_DIRECTORY and mask & CREATED and self._watchers[identity][1]:
                try:
                    self._enter_below(identity, path, tells=True)
                except OSError:
                    continue  # it is one too many: what was watched goes on

    def _tell(self, identity, path, kind):
        root, _, events = self._watchers[identity]
        event = [os.path.relpath(path, root), kind]
        if len(events) < MOST_EVENTS and events[-1:] != [event]:
            events.append(event)


def watches():
    if "made" not in WATCHES:
        WATCHES["made"] = Watches()
    return WATCHES["made"]


def op_watch(asked):
    try:
        watches().begin(asked["id"], asked["path"], asked["recursive"])
    except OSError:
        watches().end(asked["id"])
        raise
    return {}


def op_events(asked):
    events, more = watches().taken(asked["id"])
    return {"events": events, "more": more}


def op_unwatch(asked):
    watches().end(asked["id"])
    return {}


def op_usage(asked):
    """Of all that runs in this cage: seconds of processor time, bytes of memory; and bytes of files at home."""
    ticks = pages = size = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
        pages += int(fields[21])
    for directory, names, files in os.walk(HOME):
        for name in names + files:
            try:
                size += os.lstat(os.path.join(directory, name)).st_blocks * 512
            except OSError:
                continue
    memory = pages * os.sysconf("SC_PAGE_SIZE")
    return {"seconds": ticks / os.sysconf("SC_CLK_TCK"), "memory": memory, "disk": size}


def answer(line):
    try:
        asked = json.loads(line)
        return globals()["op_" + asked["op"]](asked)
    except OSError as error:
        return {"errno": errno.errorcode.get(error.errno or 0, "EIO"), "message": error.strerror or str(error)}
    except Exception as error:
        return {"errno": "EINVAL", "message": str(error)}


def main():
    for line in sys.stdin.buffer:
        sys.stdout.write(json.dumps(answer(line)) + "\n")
        sys.stdout.flush()


main()
