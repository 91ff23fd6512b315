"""The image of a session, for a fork in another interpreter and cage.

An image is a sequence of pickles: the state of the process, private files one by one, variables, and descriptors that
no variable refers to; then large buffers. Guest processes write and read it; the host only copies it.
"""

import io
import linecache
import mmap
import os
import pickle
import sys
import threading
import types

from . import session_buffers, session_files, session_pickle, trees
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
    import ctypes

    start = ctypes.addressof(ctypes.c_char.from_buffer(view))
    first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + view.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_HUGEPAGE)


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
    pickle.dump({**about, **_surroundings()}, out, 5)
    for entry in session_files.entries(_PRIVATE):
        pickle.dump(entry, out, 5)
    pickle.dump(_END, out, 5)
    carried, buffers = set(), []
    try:
        session_pickle.dump_value((modules, variables), out, carried, buffers)
    except Exception as error:
        raise CannotBranch(_find_culprit(variables, modules, error)) from None
    pickle.dump([session_files.describe(number) for number in sorted(descriptors - carried)], out, 5)
    session_buffers.write(out, buffers)


def _surroundings():
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
    _stand_there(about)
    modules, variables = pickle.load(source, buffers=session_buffers.read(source.fileno()))  # noqa: S301  # as `_load`
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


def _stand_there(about):
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
