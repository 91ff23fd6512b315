"""Open regular files of a session, restored in a fork: by path, with the same descriptor number and offset.

The fork has its own copy of the file. Pipes, sockets and deleted files cannot be copied and are refused.
"""

import fcntl
import io
import os
import stat
import sys

KINDS = (io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
_STANDARD = ("stdin", "stdout", "stderr", "__stdout__", "__stderr__")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


_PIECE = 1 << 20


class CannotBranch(Exception):
    """The session cannot be forked; the message is for the caller."""


def reduce_file(file, carried):
    """A reduction of the file for pickle, which has none for files."""
    for name in _STANDARD:
        if file is getattr(sys, name) or file is getattr(getattr(sys, name), "buffer", None):
            return standard_stream, (name, file is not getattr(sys, name))
    if file.closed:
        return make_closed_file, (type(file) is io.TextIOWrapper,)
    if type(file) is io.FileIO:
        carried.add(file.fileno())
        return reopen_raw, (describe(file.fileno()), file.mode, file.name)
    if type(file) is io.TextIOWrapper:
        how = {"encoding": file.encoding, "errors": file.errors, "line_buffering": file.line_buffering}
        return wrap, (io.TextIOWrapper, file.buffer, how), file.tell(), None, None, go_to
    if isinstance(file, (io.BufferedWriter, io.BufferedRandom)):
        file.flush()
    return wrap, (type(file), file.raw, {}), file.tell(), None, None, go_to


def describe(descriptor):
    """(number, path, flags, offset) of a regular file; raises `CannotBranch` for anything else."""
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    there = os.fstat(descriptor)
    if path in _DEVICES:
        return descriptor, path, fcntl.fcntl(descriptor, fcntl.F_GETFL), 0
    if not stat.S_ISREG(there.st_mode):
        raise CannotBranch(f"descriptor {descriptor} is open on {path}, which is not a regular file")
    try:
        named = os.stat(path)
    except OSError:
        named = None
    if named is None or (named.st_dev, named.st_ino) != (there.st_dev, there.st_ino):
        raise CannotBranch(f"descriptor {descriptor} is open on a file that has been deleted or replaced: {path}")
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    return descriptor, path, flags, os.lseek(descriptor, 0, os.SEEK_CUR)


def reopen(description):
    descriptor, path, flags, offset = description
    opened = os.open(path, flags | os.O_CLOEXEC)
    if opened != descriptor:
        try:
            os.fstat(descriptor)
        except OSError:
            os.dup2(opened, descriptor, inheritable=False)
            os.close(opened)
        else:
            raise CannotBranch(f"descriptor {descriptor}, of {path}, is in use in the fork")
    if path not in _DEVICES:
        os.lseek(descriptor, offset, os.SEEK_SET)
    return descriptor


def reopen_raw(description, mode, name):
    descriptor = reopen(description)
    raw = io.FileIO(descriptor, mode.replace("x", "w"))
    raw.name = name
    return raw


def wrap(kind, inner, how):
    return kind(inner, **how)


def go_to(file, position):
    file.seek(position)


def standard_stream(name, is_buffer):
    stream = getattr(sys, name)
    return stream.buffer if is_buffer else stream


def make_closed_file(is_text):
    file = open(os.devnull) if is_text else open(os.devnull, "rb")
    file.close()
    return file


# ---- private directories ----


def entries(places):
    """(path, mode, content) of everything in them: None for a directory, text for a link, bytes for a file.

    A file is an empty entry, then pieces without a mode: it may be larger than memory. Mounts are skipped; the fork has
    them already.
    """
    for place in places:
        device = os.stat(place).st_dev
        for directory, folders, names in os.walk(place):
            folders[:] = [name for name in folders if os.lstat(os.path.join(directory, name)).st_dev == device]
            for name in (*folders, *names):
                path = os.path.join(directory, name)
                found = os.lstat(path)
                if found.st_dev != device:
                    continue
                if stat.S_ISLNK(found.st_mode):
                    yield path, 0, os.readlink(path)
                elif stat.S_ISDIR(found.st_mode):
                    yield path, stat.S_IMODE(found.st_mode), None
                elif stat.S_ISREG(found.st_mode):
                    yield path, stat.S_IMODE(found.st_mode), b""
                    yield from _pieces(path)


def _pieces(path):
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            yield path, None, piece


def put(path, mode, content):
    """Writes an entry, replacing a file that the start of the fork may have made."""
    if content is None:
        os.makedirs(path, exist_ok=True)
        return
    if isinstance(content, str):
        if os.path.lexists(path):
            os.unlink(path)
        os.symlink(content, path)
        return
    with open(path, "ab" if mode is None else "wb") as file:
        file.write(content)
    if mode is not None:
        os.chmod(path, mode | stat.S_IWUSR)


def set_modes(modes):
    """Sets modes after everything is written, innermost first: a read-only directory must be filled before."""
    for path in reversed(modes):
        if os.stat(path).st_mode & 0o7777 != modes[path]:
            os.chmod(path, modes[path])
