"""How a guest's Python exits: as the interpreter does, or at once where the difference cannot be noticed.

The interpreter's finalisation is always right, and costs three times a whole warm run: it frees, and so copies, every
page that the fork shares. It is skipped where that cannot be noticed: no stream was replaced, and no object that is
alive does anything when it is freed.
"""

import _signal  # this and `_ctypes`: a new interpreter has not loaded their Python halves
import _weakref
import atexit
import gc
import io
import os
import sys
from _collections_abc import async_generator, coroutine, generator  # `types` would have to be loaded in an image
from _ctypes import FUNCFLAG_CDECL, FUNCFLAG_PYTHONAPI, CFuncPtr, _SimpleCData, dlopen, sizeof
from itertools import compress

INTERRUPTED = -_signal.SIGINT
_MOST_BLOCKS = 300_000  # with more, listing them takes longer than finalising
#: The zygote's: counting them looks at every page of the heap.
_blocks_before = [0]
_HAS_COLLECTOR = 1 << 14  # Py_TPFLAGS_HAVE_GC


class _Pointer(_SimpleCData):
    _type_ = "P"


class _Text(_SimpleCData):
    _type_ = "z"


class _Function(CFuncPtr):
    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_PYTHONAPI


class _Program:
    """The process itself, whose libraries are searched for functions."""

    _handle = dlopen(None, 0)


_exit_process = _Function(("exit", _Program))  # unlike os._exit, runs the destructors of libraries
_write_buffers_of_c = _Function(("fflush", _Program))
#: Resolved here: with `os._exit`, the loader would resolve it in each guest, on a dozen pages.
_leave = _Function(("_exit", _Program))
#: The loader's link to the next library, after those that do nothing noticeable at exit.
_next_library = []
#: Packages and libraries whose destructors only free memory, which takes a preloaded torch 200 ms. What is not listed
#: here ends by exit(): HDF5 writes its open files there.
_SILENT_PACKAGES = frozenset(
    "PIL contourpy jax jaxlib kiwisolver lxml markupsafe matplotlib ml_dtypes mpl_toolkits msgpack numpy numexpr nvidia"
    " orjson pandas pyarrow pydantic_core regex safetensors scipy sentencepiece shapely sklearn tokenizers torch"
    " torchaudio torchvision triton yaml zstandard".split()
)
_SILENT_LIBRARIES = frozenset(
    "libbz2 libc libcrypto libcuda libdl libexpat libffi libgcc_s libgfortran libgomp liblzma libm libmpdec libncursesw"
    " libpthread libquadmath libreadline librt libsqlite3 libssl libstdc++ libtinfo libutil libuuid libz".split()
)
_SILENT_NAMES = {name.lower() for name in _SILENT_PACKAGES} | {"scikit_learn", "pillow"}
_mro_of = type.__dict__["__mro__"].__get__  # a metaclass may override attribute access
_dict_of = type.__dict__["__dict__"].__get__
_start = {}


def note_libraries():
    """In the zygote, before and after its preload: all that are loaded so far, if none of them is noticed at exit."""
    _blocks_before[0] = sys.getallocatedblocks()
    if not _next_library:
        _next_library.append(_last_place(_Program._handle))
    elif _has_silent_libraries():
        _next_library[0] = _last_place(_next_library[0].value or _Program._handle)
    else:
        _next_library.clear()


def forget_silent_finalizers():
    """In the zygote, after its preload: torch has a thousand finalizers that only free what it holds."""
    finalize = getattr(sys.modules.get("weakref"), "finalize", None)
    for finalizer, entry in list(getattr(finalize, "_registry", {}).items()):
        package = str(getattr(entry.func, "__module__", "")).partition(".")[0]
        if package.lower() in _SILENT_NAMES:
            finalizer.atexit = False


def _link(library, index):
    """A field of the loader's list, which <link.h> describes: address, name, section, next, previous."""
    return _Pointer.from_address(library + index * sizeof(_Pointer))


def _last_place(library):
    while (place := _link(library, 3)).value is not None:
        library = place.value
    return place


def _has_silent_libraries():
    """Whether the libraries that were loaded since do nothing at exit that anybody could notice."""
    library = _next_library[0].value
    while library is not None:
        if not _is_silent(os.fsdecode(_Text.from_address(library + sizeof(_Pointer)).value or b"")):
            return False
        library = _link(library, 3).value
    return True


def _is_silent(path):
    directories = path.split("/")
    for packages in ("site-packages", "dist-packages"):
        if packages in directories:
            # "numpy.libs" holds what the wheel of numpy was linked with.
            return directories[directories.index(packages) + 1].partition(".")[0].lower() in _SILENT_NAMES
    return "lib-dynload" in directories or directories[-1].partition(".so")[0].partition("-")[0] in _SILENT_LIBRARIES


class _Witness:
    """Listed by the collector, unless the guest has called `gc.freeze`."""


def begin():
    """Records the state at the start of the guest, to be compared at its exit."""
    _start.update(
        streams=(id(sys.stdout), id(sys.stderr)),  # a reference would keep them from being flushed when they are freed
        exit_functions=_exit_functions(),
        witness=_Witness(),
    )


def _exit_functions():
    """The number of exit functions, without those of weakref and logging, which never raise."""
    finalizers = getattr(sys.modules.get("weakref"), "finalize", None)
    silent = bool(getattr(finalizers, "_registered_with_atexit", False)) + ("logging" in sys.modules)
    return atexit._ncallbacks() - silent


def is_end_unnoticed():
    """Whether only the standard streams have to be flushed; if so, flushes them."""
    if sys.gettrace() is not None or sys.getprofile() is not None or gc.get_debug() or gc.callbacks:
        return False
    # Without taking locks that no other thread can hold, and without calls that do nothing.
    threading = sys.modules.get("threading")
    try:
        if threading is not None and len(threading._active) + len(threading._limbo) > 1:
            return False
        if _exit_functions() != _start["exit_functions"]:
            return False
        if threading is not None and threading._threading_atexits:
            threading._shutdown()
        if atexit._ncallbacks():
            atexit._run_exitfuncs()
        if (id(sys.stdout), id(sys.stderr)) != _start["streams"] or is_anything_noticed():
            return False
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # the interpreter meets it again, and reports it
        return False
    return True


def rehearse_end():
    """Does the same as far as it calls no guest code, so that the pages that it touches are copied."""
    begin()
    threading = sys.modules.get("threading")
    if atexit._ncallbacks() or (threading is not None and threading._threading_atexits):
        is_anything_noticed()
    elif is_end_unnoticed() and _is_exit_silent():
        _write_buffers_of_c(None)


def is_anything_noticed():
    """Whether any object is alive that does something when it is freed."""
    created, *collections = gc.get_count()
    # Without a collection since the start, all objects that are alive were counted.
    if (created > _MOST_BLOCKS or any(collections)) and sys.getallocatedblocks() - _blocks_before[0] > _MOST_BLOCKS:
        return True
    objects = gc.get_objects()
    kinds = list(map(type, objects))
    distinct = set(kinds)
    watched = set(filter(_is_watched, distinct))
    is_hidden = _Witness not in distinct
    return is_hidden or any(map(_is_noticed, compress(objects, map(watched.__contains__, kinds))))


def _is_guest_listed():
    """False if the guest has called `gc.freeze`."""
    return any(thing is _start["witness"] for thing in gc.get_objects())


def _is_watched(kind):
    lineage = _mro_of(kind)
    return type in lineage or _weakref.ref in lineage or _has_finaliser(kind)


def _has_finaliser(kind):
    """`__del__` of the class, or the C function behind it, which shows under the same name."""
    return any("__del__" in _dict_of(base) for base in _mro_of(kind))


def _is_noticed(thing):
    kind = type(thing)
    if kind in (io.StringIO, io.BytesIO):
        return False
    if kind in _FILES:
        return not thing.closed
    if kind in _FRAMES:
        return _is_suspended(thing)
    if _has_finaliser(kind):
        return True
    if type in _mro_of(kind):  # instances of a class without the collector's header are not listed
        return _has_finaliser(thing) and not thing.__flags__ & _HAS_COLLECTOR
    called = thing.__callback__
    return called is not None and called.__module__ not in _SILENT and called.__name__ != "_destroy"


_FILES = frozenset([io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper])
_SILENT = ("weakref", "_weakrefset", "logging")  # whose weak references only keep their own books; so does C's _destroy
_FRAMES = {generator: "gi", coroutine: "cr", async_generator: "ag"}


def _is_suspended(thing):
    """Whether it has code left to run, or would warn that it never ran."""
    prefix = _FRAMES[type(thing)]
    if getattr(thing, f"{prefix}_frame") is None:
        return False
    return prefix != "gi" or getattr(thing, "gi_suspended", True)


def end_at_once(status):
    if status == INTERRUPTED:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)
    if _is_exit_silent():
        _write_buffers_of_c(None)
        _leave(status)
    _exit_process(status)


def _is_exit_silent():
    """Whether what the libraries do in exit() cannot be noticed. It would touch thirty pages and more."""
    return bool(_next_library) and (_next_library[0].value is None or _has_silent_libraries())


def end_as_any_interpreter(status):
    """Only the zygote's entry point is left on the stack: the exception ends the interpreter."""
    if _is_guest_listed():
        # Modules that only `sys.modules` refers to are freed first, and the collector must find what they hold.
        gc.unfreeze()
    if status == INTERRUPTED:
        sys.excepthook = lambda *_: None  # it has been reported
        raise KeyboardInterrupt
    raise SystemExit(status)
