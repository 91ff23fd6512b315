"""The image of a session, for a fork in another interpreter and cage.

An image is a sequence of pickles: the state of the process, private files one by one, variables, and descriptors that
no variable refers to; then large buffers. Guest processes write and read it; the host only copies it.
"""

import ctypes
import io
import linecache
import mmap
import os
import pickle
import struct
import sys
import threading
import types

from . import session_files, session_pickle, trees
from .session_files import CannotBranch

#: Where the work directory may be. The host copies or keeps it.
_WORK = ("/work", "/home/user", "/workspace")
#: Private directories of the guest.
_PRIVATE = ("/tmp", "/home/sandbox", "/dev/shm")
_NOT_OURS = ("/site-packages/", "/dist-packages/")
_PLAIN = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
_END = None
#: Two huge pages: a smaller buffer may not contain an aligned one.
_LARGE = 1 << 22
#: The last bytes of an image: where the list of buffers starts.
_TRAILER = struct.Struct("<Q")
#: Made when this is imported, which is before the fork for most sessions.
_library = ctypes.CDLL(None)
_library.mmap.restype = ctypes.c_void_p
_library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class ImagePipe(io.RawIOBase):
    """Writes large buffers to the pipe without copying them."""

    def __init__(self, descriptor):
        self._descriptor = descriptor
        #: What was written so far.
        self.size = 0

    def writable(self):
        return True

    def write(self, data):
        view = memoryview(data).cast("B")
        size = len(view)
        self.size += size
        while view:
            view = view[os.write(self._descriptor, view) :]
        return size


class ImageReader(io.BufferedReader):
    """Reads large buffers into huge pages if the kernel has some."""

    def readinto(self, buffer):
        view = memoryview(buffer)
        if view.nbytes >= _LARGE:
            _advise(view)
        return super().readinto(view)


def _advise(view):
    """Advises whole pages of the buffer only. A failure does not matter."""
    start = ctypes.addressof(ctypes.c_char.from_buffer(view))
    first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + view.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    _library.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_HUGEPAGE)


# ---- writing ----


def check(descriptors, loop):
    """Raises `CannotBranch` for state that cannot be copied. Returns the descriptors to copy.

    `loop` is the session's event loop; a new one is made when it is needed.
    """
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if threads or len(sys._current_frames()) > 1:
        raise CannotBranch(f"it has other threads: {', '.join(threads) or 'without names'}")
    if loop is not None and not loop.is_closed():
        if sys.modules["asyncio"].all_tasks(loop):
            raise CannotBranch("it has asyncio tasks that are not done")
        loop.close()
        descriptors = {number for number in descriptors if _is_open(number)}
    others = trees.own_descendants()
    if others:
        raise CannotBranch(f"it has started processes that still run: {', '.join(map(str, sorted(others)))}")
    for descriptor in descriptors:
        session_files.describe(descriptor)
    return descriptors


def _is_open(descriptor):
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


def write(out, namespace, about, descriptors):
    """The whole session, or `CannotBranch`."""
    variables = {name: value for name, value in namespace.items() if name != "__builtins__"}
    modules = _states_of_modules()
    pickle.dump({**about, **_collect_surroundings()}, out, 5)
    for entry in session_files.entries(_PRIVATE):
        pickle.dump(entry, out, 5)
    pickle.dump(_END, out, 5)
    carried, buffers = set(), []
    try:
        session_pickle.dump_value((modules, variables), out, carried, buffers)
    except Exception as error:
        raise CannotBranch(_find_culprit(variables, modules, error)) from None
    pickle.dump([session_files.describe(number) for number in sorted(descriptors - carried)], out, 5)
    _write_buffers(out, buffers)


def _collect_surroundings():
    random, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    return {
        "cwd": os.getcwd(),
        "environ": {name: value for name, value in os.environ.items() if name != trees.MARK},
        "path": list(sys.path),
        "argv": list(sys.argv),
        "recursion": sys.getrecursionlimit(),
        "umask": _umask(),
        "random": random and random.getstate(),
        "numpy": numpy and numpy.get_state(),
        "cells": {name: found for name, found in linecache.cache.items() if name.startswith("<cell ")},
    }


def _umask():
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


def _states_of_modules():
    """The variables of the guest's own modules, which importing them again would reset."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name != "__main__" and isinstance(file, str) and _is_guests(file):
            state = {key: value for key, value in vars(module).items() if not key.startswith("__")}
            found[name] = {key: value for key, value in state.items() if not isinstance(value, _PLAIN)}
    return found


def _is_guests(file):
    return file.startswith(tuple(f"{place}/" for place in (*_WORK, *_PRIVATE))) and not any(
        part in file for part in _NOT_OURS
    )


def _find_culprit(variables, modules, error):
    """Names the variable that cannot be copied. Called only after copying all of them together has failed."""
    named = {**variables, **{f"{name}.{key}": value for name in modules for key, value in modules[name].items()}}
    for name, value in named.items():
        reason = session_pickle.complaint(value)
        if reason is not None:
            return f"the variable {name!r} cannot be copied: {reason}"
    return f"its variables cannot be copied together: {type(error).__name__}: {error}"


# ---- reading ----


def read(source, namespace, reseed, keeps_files=False):
    """Restores the session from its image and returns `about`.

    With `keeps_files`, private files that are there already stay as they are.
    """
    about = _load(source)
    _read_private_files(source, keeps_files)
    _restore_surroundings(about)
    modules, variables = pickle.load(source, buffers=_read_buffers(source.fileno()))  # noqa: S301  # as `_load`
    for name, state in modules.items():
        vars(sys.modules.get(name) or __import__(name, fromlist=["*"])).update(state)
    namespace.update(variables)
    for description in _load(source):
        session_files.reopen(description)
    _set_random(about, reseed)
    return about


def _read_private_files(source, keeps_files):
    modes, kept = {}, set()
    while (entry := _load(source)) is not _END:
        path, mode, content = entry
        if mode is not None and keeps_files and os.path.lexists(path):
            kept.add(path)
        if path in kept:
            continue
        session_files.put(path, mode, content)
        if mode:
            modes[path] = mode
    session_files.set_modes(modes)


def _load(source):
    return pickle.load(source)  # noqa: S301  # in the cage: it runs with the rights of its author


def _restore_surroundings(about):
    mark = os.environ.get(trees.MARK)  # by which the agent of the fork finds the processes of this session
    os.environ.clear()
    os.environ.update({**about["environ"], **({} if mark is None else {trees.MARK: mark})})
    os.chdir(about["cwd"])
    os.umask(about["umask"])
    sys.path[:] = about["path"]
    sys.argv[:] = about["argv"]
    sys.setrecursionlimit(about["recursion"])
    linecache.cache.update(about["cells"])


def _set_random(about, reseed):
    """With `reseed` the fork draws other random numbers than its siblings."""
    if about["random"] is not None:
        import random

        random.seed() if reseed else random.setstate(about["random"])
    if about["numpy"] is not None:
        from numpy import random as numpy_random

        numpy_random.seed() if reseed else numpy_random.set_state(about["numpy"])
    if "_ssl" in sys.modules:
        sys.modules["_ssl"].RAND_add(os.urandom(32), 32.0)


# ---- buffers ----
#
# Every session that reads the image maps them privately: a buffer takes no memory of its own until the session writes
# to it. The file is sealed, so what one session writes no other one sees.


def _write_buffers(out, buffers):
    """Writes the buffers, each at the start of a page, and where they lie."""
    places = []
    for buffer in buffers:
        out.write(bytes(-out.size % mmap.PAGESIZE))
        with buffer.raw() as data:
            places.append((out.size, data.nbytes))
            out.write(data)
    start = out.size
    pickle.dump(places, out, 5)
    out.write(_TRAILER.pack(start))


def _read_buffers(descriptor):
    """The buffers of an image, in the order in which its pickle refers to them."""
    end = os.fstat(descriptor).st_size - _TRAILER.size
    (start,) = _TRAILER.unpack(os.pread(descriptor, _TRAILER.size, end))
    places = pickle.loads(os.pread(descriptor, end - start, start))  # noqa: S301  # in the cage, like the variables
    return [_map(descriptor, offset, size) for offset, size in places]


def _map(descriptor, offset, size):
    """Not by `mmap.mmap`, which keeps a descriptor open for each mapping: the next image would have to explain it."""
    how = mmap.PROT_READ | mmap.PROT_WRITE
    address = _library.mmap(None, size, how, mmap.MAP_PRIVATE, descriptor, offset)
    if address in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"cannot map a buffer of {size} bytes")
    array = (ctypes.c_char * size).from_address(address)
    array.mapping = _Mapping(address, size)
    return memoryview(array).cast("B")


class _Mapping:
    """Ends with the last object that uses its memory."""

    def __init__(self, address, size):
        self._unmap, self._range = _library.munmap, (address, size)

    def __del__(self):
        self._unmap(*self._range)
