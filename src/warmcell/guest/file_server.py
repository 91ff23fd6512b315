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
import sys

HOME = os.environ.get("HOME", "/home/user")
PAGE = 1000
CHUNK = 256 * 1024
MARK = b"user.e2b."
MOST_WATCHED = 2000


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
    """All down to a depth, a page at a time."""
    root, found = resolved(asked["path"]), []
    if not os.path.isdir(root):
        raise NotADirectoryError(errno.ENOTDIR, "not a directory")
    root = os.path.realpath(root)
    for directory, names, files in os.walk(root):
        depth = len(os.path.relpath(directory, root).split(os.sep)) if directory != root else 0
        found += [os.path.join(directory, name) for name in sorted(names + files)]
        names.sort()
        if depth + 1 >= asked["depth"]:
            names.clear()
    found.sort()
    page = []
    for path in found[asked["offset"] : asked["offset"] + PAGE]:
        try:
            page.append(entry(path))
        except FileNotFoundError:
            continue
    return {"entries": page, "more": asked["offset"] + PAGE < len(found)}


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
    with open(path, "wb" if asked["offset"] == 0 else "ab") as file:
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


def op_tree(asked):
    """What is there, by what changes when it does: for whoever watches."""
    root, found = os.path.realpath(resolved(asked["path"])), {}
    if not os.path.isdir(root):
        raise NotADirectoryError(errno.ENOTDIR, "not a directory")
    for directory, names, files in os.walk(root):
        for name in names + files:
            path = os.path.join(directory, name)
            try:
                look = os.lstat(path)
            except OSError:
                continue
            is_directory = stat.S_ISDIR(look.st_mode)
            content = 0 if is_directory else look.st_mtime_ns
            found[os.path.relpath(path, root)] = [look.st_ino, content, look.st_size * (not is_directory), look.st_mode]
        if not asked["recursive"] or len(found) > MOST_WATCHED:
            break
    return {"tree": dict(list(found.items())[:MOST_WATCHED])}


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
