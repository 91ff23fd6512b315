"""A whole session as bytes, and back: for a branch, which is another interpreter in a cage of its own.

An image is a row of pickles: where the session stood, its private files one by one, its variables, and descriptors that
no variable holds. It is written by the guest's process and read by the guest's process; the host only moves it.
"""

import io
import linecache
import mmap
import os
import pickle
import sys
import threading
import types

from . import session_files, session_pickle, trees
from .session_files import CannotBranch

#: The guest's own; the work directory is copied by the host.
_PRIVATE = ("/tmp", "/home/sandbox", "/dev/shm")
_NOT_OURS = ("/site-packages/", "/dist-packages/")
_PLAIN = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
_END = None
#: Two huge pages of the usual size: in less there may not be one.
_LARGE = 1 << 22


class ImagePipe(io.RawIOBase):
    """Large buffers are handed to the pipe as they are."""

    def __init__(self, descriptor):
        self._descriptor = descriptor

    def writable(self):
        return True

    def write(self, data):
        view = memoryview(data).cast("B")
        size = len(view)
        while view:
            view = view[os.write(self._descriptor, view) :]
        return size


class ImageReader(io.BufferedReader):
    """Large buffers are read into huge pages where the kernel has some: they are filled at once, and to the end."""

    def readinto(self, buffer):
        view = memoryview(buffer)
        if view.nbytes >= _LARGE:
            _advise(view)
        return super().readinto(view)


def _advise(view):
    """Only whole pages that nothing else is on. What the kernel does not want to do is no loss."""
    import ctypes

    start = ctypes.addressof(ctypes.c_char.from_buffer(view))
    first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + view.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_HUGEPAGE)


# ---- writing ----


def check(descriptors, loop):
    """Refuses what two interpreters cannot each have for themselves. Gives the descriptors that go along.

    `loop` is the session's own, which makes another when it needs one.
    """
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if threads or len(sys._current_frames()) > 1:
        raise CannotBranch(f"it has other threads: {', '.join(threads) or 'without names'}")
    if loop is not None and not loop.is_closed():
        if sys.modules["asyncio"].all_tasks(loop):
            raise CannotBranch("it has asyncio tasks that are not done")
        loop.close()
        descriptors = {number for number in descriptors if _is_open(number)}
    others = trees.started_by_us()
    if others:
        raise CannotBranch(f"it has started processes that still run: {', '.join(map(str, sorted(others)))}")
    for descriptor in descriptors:
        session_files.described(descriptor)
    return descriptors


def _is_open(descriptor):
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


def write(out, namespace, about, descriptors):
    pickle.dump({**about, **_surroundings()}, out, 5)
    for entry in session_files.entries(_PRIVATE):
        pickle.dump(entry, out, 5)
    pickle.dump(_END, out, 5)
    carried = set()
    variables = {name: value for name, value in namespace.items() if name != "__builtins__"}
    modules = _states_of_modules()
    try:
        session_pickle.dumped((modules, variables), out, carried)
    except Exception as error:
        raise CannotBranch(_blamed(variables, modules, error)) from None
    pickle.dump([session_files.described(number) for number in sorted(descriptors - carried)], out, 5)


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
    """What the guest's own modules hold: importing them again would begin anew."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name != "__main__" and isinstance(file, str) and _is_guests(file):
            state = {key: value for key, value in vars(module).items() if not key.startswith("__")}
            found[name] = {key: value for key, value in state.items() if not isinstance(value, _PLAIN)}
    return found


def _is_guests(file):
    places = ("/work", *_PRIVATE)
    return file.startswith(tuple(f"{place}/" for place in places)) and not any(part in file for part in _NOT_OURS)


def _blamed(variables, modules, error):
    """The variables that cannot go along, by name; looked for one by one only when it is known that there are some."""
    named = {**variables, **{f"{name}.{key}": value for name in modules for key, value in modules[name].items()}}
    for name, value in named.items():
        reason = session_pickle.complaint(value)
        if reason is not None:
            return f"the variable {name!r} cannot go along: {reason}"
    return f"its variables cannot go along together: {type(error).__name__}: {error}"


# ---- reading ----


def read(source, namespace, reseed):
    """Takes the place of the session that was written. Gives what `about` was."""
    about = _loaded(source)
    modes = {}
    while (entry := _loaded(source)) is not _END:
        path, mode, content = entry
        session_files.put(path, mode, content)
        if mode:
            modes[path] = mode
    session_files.set_modes(modes)
    _stand_there(about)
    modules, variables = _loaded(source)
    for name, state in modules.items():
        vars(sys.modules.get(name) or __import__(name, fromlist=["*"])).update(state)
    namespace.update(variables)
    for description in _loaded(source):
        session_files.reopen(description)
    _set_random(about, reseed)
    return about


def _loaded(source):
    return pickle.load(source)  # noqa: S301  # in the cage: whatever it runs has the rights of who wrote it


def _stand_there(about):
    mark = os.environ.get(trees.MARK)  # by which the branch's own agent knows what is this session's
    os.environ.clear()
    os.environ.update({**about["environ"], **({} if mark is None else {trees.MARK: mark})})
    os.chdir(about["cwd"])
    os.umask(about["umask"])
    sys.path[:] = about["path"]
    sys.argv[:] = about["argv"]
    sys.setrecursionlimit(about["recursion"])
    linecache.cache.update(about["cells"])


def _set_random(about, reseed):
    """A branch that drew the same numbers as its siblings would search what they search."""
    if about["random"] is not None:
        import random

        random.seed() if reseed else random.setstate(about["random"])
    if about["numpy"] is not None:
        from numpy import random as numpy_random

        numpy_random.seed() if reseed else numpy_random.set_state(about["numpy"])
    if "_ssl" in sys.modules:
        sys.modules["_ssl"].RAND_add(os.urandom(32), 32.0)
