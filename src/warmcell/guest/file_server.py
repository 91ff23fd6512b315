"""The file service of the E2B door, which runs inside the cage: one line of JSON per request and per answer.

It has the rights of any guest, so it need not check paths or links; the host treats its answers as untrusted data.
"""

import base64
import errno
import functools
import grp
import json
import os
import pwd
import shutil
import stat
import sys

from file_watches import CHANGED, MOST_BYTES, NEW, PAGE, Watches

HOME = os.environ.get("HOME", "/home/user")
CHUNK = 256 * 1024
MOST_ENTRIES = 100_000
#: By path and depth: listings of which a client has had some pages.
LISTED = {}
MOST_LISTINGS = 4
MARK = b"user.e2b."
#: By token: uploads that are incomplete, and descriptors of files that are being read.
UPLOADS, DOWNLOADS = {}, {}
MOST_TRANSFERS = 64


def resolve(path):
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
    return {"entry": entry(resolve(asked["path"]))}


def op_list(asked):
    """A page of the entries down to a depth; the next page starts at `next`. Unreadable entries are left out."""
    key = asked["path"], asked["depth"]
    found = LISTED.pop(key, None) if asked["offset"] else None
    found = list_tree(*key) if found is None else found
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


def list_tree(path, most_depth):
    """The sorted paths, not many more than `MOST_ENTRIES`."""
    root, found = resolve(path), []
    if not stat.S_ISDIR(os.stat(root).st_mode):
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
    path = resolve(asked["path"])
    if os.path.isdir(path):
        raise FileExistsError(errno.EEXIST, "already exists")
    if os.path.exists(path):
        raise NotADirectoryError(errno.ENOTDIR, "already exists and is not a directory")
    os.makedirs(path)
    return {"entry": entry(path)}


def op_move(asked):
    source, target = resolve(asked["source"]), resolve(asked["destination"])
    os.lstat(source)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV or os.path.isdir(target):  # `shutil.move` would move it into the directory
            raise
        shutil.move(source, target)
    return {"entry": entry(target)}


def op_remove(asked):
    path = resolve(asked["path"])
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
    return {}


def op_read(asked):
    """A chunk. The file stays open until its last chunk: all of them are of one version."""
    token, offset = asked["token"], asked["offset"]
    descriptor = DOWNLOADS.pop(token, None) if offset else open_regular(resolve(asked["path"]))
    if descriptor is None:
        raise OSError(errno.ESTALE, "too many files are read at once")
    data = b""
    try:
        data = os.pread(descriptor, CHUNK, offset)
    finally:
        if len(data) < CHUNK:
            os.close(descriptor)
        else:
            DOWNLOADS[token] = descriptor
    for old in list(DOWNLOADS)[:-MOST_TRANSFERS]:
        os.close(DOWNLOADS.pop(old))
    return {"data": base64.b64encode(data).decode(), "more": token in DOWNLOADS}


def open_regular(path):
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "is a directory")
    # O_NONBLOCK: opening a FIFO without a writer must not block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


class Upload:
    """The next version of a file: a temporary file beside it, renamed when it is complete."""

    def __init__(self, path, token):
        self.path, self.size = os.path.realpath(path), 0
        self.mode = self._existing_mode()
        directory = os.path.dirname(self.path)
        os.makedirs(directory, exist_ok=True)
        kind = NEW if self.mode is None else CHANGED
        self.temporary = os.path.join(directory, "." + token + kind)
        self.descriptor = os.open(self.temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def _existing_mode(self):
        """None if there is no file yet."""
        try:
            mode = os.stat(self.path).st_mode
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if not os.access(self.path, os.W_OK):
            raise PermissionError(errno.EACCES, "permission denied")
        return stat.S_IMODE(mode)

    def append(self, offset, data):
        if offset != self.size:
            raise OSError(errno.EINVAL, "a part of the upload is missing")
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]
        self.size += len(data)

    def finish(self, metadata):
        for key, value in metadata.items():
            os.setxattr(self.descriptor, MARK + key.encode(), value.encode())
        if self.mode is not None:
            os.fchmod(self.descriptor, self.mode)
        os.replace(self.temporary, self.path)
        os.close(self.descriptor)

    def discard(self):
        os.close(self.descriptor)
        try:
            os.unlink(self.temporary)
        except FileNotFoundError:
            pass


def op_write(asked):
    """A chunk of an upload, in order; the first one begins it."""
    token, offset = asked["token"], asked["offset"]
    if offset == 0:
        if len(UPLOADS) >= MOST_TRANSFERS:
            raise OSError(errno.EBUSY, "too many uploads at once")
        UPLOADS[token] = Upload(resolve(asked["path"]), token)
    find_upload(token).append(offset, base64.b64decode(asked["data"]))
    return {}


def op_finish(asked):
    upload = find_upload(asked["token"])
    upload.finish(asked["metadata"])
    del UPLOADS[asked["token"]]
    return {"entry": entry(upload.path)}


def find_upload(token):
    if token not in UPLOADS:
        raise OSError(errno.ESTALE, "upload not found")
    return UPLOADS[token]


def op_discard(asked):
    """The client of an upload or a download has gone."""
    upload, descriptor = UPLOADS.pop(asked["token"], None), DOWNLOADS.pop(asked["token"], None)
    if upload is not None:
        upload.discard()
    if descriptor is not None:
        os.close(descriptor)
    return {}


@functools.cache
def watches():
    return Watches()


def op_watch(asked):
    try:
        watches().begin(asked["watcher"], resolve(asked["path"]), asked["recursive"])
    except OSError:
        watches().end(asked["watcher"])
        raise
    return {}


def op_events(asked):
    events, more = watches().take(asked["watcher"])
    return {"events": events, "more": more}


def op_unwatch(asked):
    watches().end(asked["watcher"])
    return {}


def op_usage(asked):
    """Processor seconds and bytes of memory of everything in the cage, and bytes of files in the home."""
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


def answer(asked):
    try:
        return globals()["op_" + asked["op"]](asked)
    except OSError as error:
        return {"errno": errno.errorcode.get(error.errno or 0, "EIO"), "message": error.strerror or str(error)}
    except Exception as error:
        return {"errno": "EINVAL", "message": str(error)}


def main():
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        sys.stdout.write(json.dumps({"id": asked["id"], **answer(asked)}) + "\n")
        sys.stdout.flush()


main()
