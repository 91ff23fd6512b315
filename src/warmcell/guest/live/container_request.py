"""One request of the Docker door, carried out inside the cage: files in and out, and the processes there are.

Reads a line of JSON from stdin, then the archive of a `put`. Writes a line of JSON, or the archive of a `get`. It has
the rights of any guest, so a path or a link can lead nowhere but into the same container.
"""

import _signal as signal
import errno
import json
import os
import stat
import tarfile

from . import trees

_KERNEL_PLACES = ("/proc", "/sys", "/dev")
_CHUNK = 1 << 16
#: The largest answer, and how much of it the rows of processes may take. It is not JSON if it is cut.
_ANSWER_BYTES, _ROWS_BYTES = 1 << 16, 60_000
#: The bits of Go's `os.FileMode`, by type of file and by mode bit.
_KINDS = {
    stat.S_IFDIR: 1 << 31,
    stat.S_IFLNK: 1 << 27,
    stat.S_IFBLK: 1 << 26,
    stat.S_IFCHR: 1 << 26 | 1 << 21,
    stat.S_IFIFO: 1 << 25,
    stat.S_IFSOCK: 1 << 24,
}
#: A tar header has eleven octal digits, up to the year 2242. Files have other times too, and so have extended headers.
_LATEST = 8**11 - 1
_SPECIAL_BITS = {stat.S_ISUID: 1 << 23, stat.S_ISGID: 1 << 22, stat.S_ISVTX: 1 << 20}


class Refused(Exception):
    """A request that cannot be carried out: the name of an errno, and the reason."""


def main():
    source = open(0, "rb", _CHUNK)
    request = json.loads(source.readline())
    status = 0
    try:
        answer = globals()["op_" + request["op"]](request, source)
    except Refused as refusal:
        answer, status = {"errno": refusal.args[0], "message": refusal.args[1]}, 1
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "EIO")
        answer, status = {"errno": name, "message": error.strerror or str(error)}, 1
    except tarfile.TarError as error:
        answer, status = {"errno": "EINVAL", "message": f"invalid archive: {error}"}, 1
    if answer is not None:
        data = json.dumps(answer).encode() + b"\n"
        os.write(1 if request["op"] != "get" else 2, data[:_ANSWER_BYTES])
    os._exit(status)


def op_stat(request, source):
    path = request["path"]
    found = os.lstat(path)
    mode = found.st_mode & 0o777 | _KINDS.get(stat.S_IFMT(found.st_mode), 0)
    for bit, value in _SPECIAL_BITS.items():
        mode |= value if found.st_mode & bit else 0
    target = os.path.realpath(path) if stat.S_ISLNK(found.st_mode) else ""
    return {"size": found.st_size, "mode": mode, "mtime": found.st_mtime, "linkTarget": target}


def op_mkdir(request, source):
    os.makedirs(request["path"], exist_ok=True)
    return {}


# ---- archives ----


def op_get(request, source):
    """The file or directory as tar on stdout. Sockets are left out, as Docker does."""
    waiting = [(request["path"], request["name"])]
    with open(1, "wb", 1 << 20, closefd=False) as out, tarfile.open(fileobj=out, mode="w|") as archive:
        while waiting:
            path, name = waiting.pop()
            info = archive.gettarinfo(path, name)
            if info is None:
                continue
            info.mtime = _limit_time(info.mtime)
            if info.isreg():
                with open(path, "rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
            if info.isdir() and os.path.normpath(path) not in _KERNEL_PLACES:
                names = sorted(os.listdir(path), reverse=True)
                waiting += [(os.path.join(path, child), f"{name}/{child}") for child in names]
    return None


def op_put(request, source):
    path = request["path"]
    if not os.path.isdir(path):
        os.stat(path)
        raise Refused("ENOTDIR", "extraction point is not a directory")
    with tarfile.open(fileobj=source, mode="r|*") as archive:
        for member in archive:
            _extract(archive, member, path, request["keeps_kinds"])
    while source.read(_CHUNK):  # the sender has no reason to fail on what follows the end of the archive
        pass
    return {}


def _extract(archive, member, root, keeps_kinds):
    target = _inside(root, member.name)
    if target != root:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _make_way(target, member, keeps_kinds)
    if member.isdir():
        os.makedirs(target, exist_ok=True)
    elif member.isreg():
        _write(archive.extractfile(member), target)
    elif member.issym():
        os.symlink(member.linkname, target)
        return
    elif member.islnk():
        os.link(_inside(root, member.linkname), target, follow_symlinks=False)
        return
    elif member.isfifo():
        os.mkfifo(target)
    else:
        raise Refused("EPERM", f"{member.name}: device nodes cannot be made in a container")
    os.chmod(target, member.mode & 0o7777)
    moment = _limit_time(member.mtime)
    os.utime(target, (moment, moment))


def _limit_time(moment):
    """The nearest time of a tar header; 0 for what is not a number."""
    return min(moment, _LATEST) if moment >= 1 else 0


def _inside(root, name):
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise Refused("EINVAL", f"{name}: '..' leads out of the directory")
    return os.path.join(root, *parts)


def _make_way(target, member, keeps_kinds):
    """Removes what the member replaces. A directory gives way only to a directory, unless it is empty."""
    try:
        is_directory = stat.S_ISDIR(os.lstat(target).st_mode)
    except FileNotFoundError:
        return
    if is_directory == member.isdir() and is_directory:
        return
    if keeps_kinds and is_directory != member.isdir():
        raise Refused("EINVAL", f"{member.name}: a directory and a file cannot replace each other")
    os.rmdir(target) if is_directory else os.unlink(target)


def _write(content, target):
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb", 0) as file:
        while data := content.read(_CHUNK):
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]


# ---- processes ----


def _others():
    """All processes but init, the agent and this one."""
    own = {1, os.getpid(), os.getppid()}
    return {int(name) for name in os.listdir("/proc") if name.isdigit()} - own


def op_kill(request, source):
    """Kills everything. Stops all first, because a stopped process starts nothing."""
    trees._signal(trees.pause_all(spared={os.getppid()}), signal.SIGKILL)
    return {}


def op_processes(request, source):
    """Rows of `ps -ef` as far as they fit, and processor seconds and bytes of memory in all."""
    rows, room, count, seconds, memory = [], _ROWS_BYTES, 0, 0.0, 0
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for pid in sorted(_others()):
        fields = trees._fields(pid)
        if fields is None:
            continue
        used = (int(fields[11]) + int(fields[12])) / ticks
        seconds, memory = seconds + used, memory + int(fields[21]) * page
        count += 1
        row = [str(os.getuid()), str(pid), fields[1].decode(), "0", "-", "?", _clock(used), _command(pid)]
        room -= len(json.dumps(row)) + 2
        if room > 0:
            rows.append(row)
    return {"rows": rows, "seconds": seconds, "memory": memory, "count": count}


def _clock(seconds):
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _command(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(100).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""
