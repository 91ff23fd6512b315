"""The end of a guest's Python: as the interpreter ends, or at once where nobody could tell the difference.

The interpreter's own finalisation is the one that is right in every case, and costs three times a whole warm run: it
frees, and so copies, every page that the fork shares. So it is left out where nobody could tell: no stream was
replaced, and nothing that is still alive does anything when it goes.
"""

import _signal  # and `_ctypes`: without the Python around them, which takes long to load, and a new interpreter has not
import _weakref
import atexit
import gc
import io
import os
import sys
from _ctypes import FUNCFLAG_CDECL, FUNCFLAG_PYTHONAPI, CFuncPtr, _SimpleCData, dlopen, sizeof
from itertools import compress
from types import AsyncGeneratorType, CoroutineType, GeneratorType

INTERRUPTED = -_signal.SIGINT
_MOST_BLOCKS = 300_000  # more than this is not worth listing: freeing it is what takes the time
_HAS_COLLECTOR = 1 << 14  # Py_TPFLAGS_HAVE_GC


class _Pointer(_SimpleCData):
    _type_ = "P"


class _Function(CFuncPtr):
    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_PYTHONAPI


class _Program:
    """All that is loaded, where functions are looked for by their names."""

    _handle = dlopen(None, 0)


_exit_process = _Function(("exit", _Program))  # unlike os._exit, lets libraries say their last word
_write_buffers_of_c = _Function(("fflush", _Program))
#: Looked up here: `os._exit` has the loader look for it in each guest, on a dozen pages.
_leave = _Function(("_exit", _Program))
#: Where no preload brought any: the place where the loader notes the next library.
_plain_end = []
_mro_of = type.__dict__["__mro__"].__get__  # a metaclass may have its own ideas about attributes
_dict_of = type.__dict__["__dict__"].__get__
_start = {}


def note_libraries():
    """In the zygote, where no preload brought any."""
    _plain_end.append(_place_of_next_library())


def _place_of_next_library():
    """Behind the last one in the loader's list, which <link.h> describes: address, name, section, next, previous."""
    library = _Program._handle
    while True:
        place = _Pointer.from_address(library + 3 * sizeof(_Pointer))
        if place.value is None:
            return place
        library = place.value


class _Witness:
    """Listed by the collector, unless the guest has hidden what it made (`gc.freeze`)."""


def begin():
    """What the guest begins with, to be compared when it ends."""
    _start.update(
        streams=(id(sys.stdout), id(sys.stderr)),  # a reference would keep them from being flushed when they go
        exit_functions=_exit_functions(),
        blocks=sys.getallocatedblocks(),
        witness=_Witness(),
    )


def _exit_functions():
    """How many functions wait for the end, apart from two that raise nothing whoever calls them."""
    finalizers = getattr(sys.modules.get("weakref"), "finalize", None)
    silent = bool(getattr(finalizers, "_registered_with_atexit", False)) + ("logging" in sys.modules)
    return atexit._ncallbacks() - silent


def is_end_unnoticed():
    """Whether all that is left to do is to flush the standard streams; and if so, does it."""
    if sys.gettrace() is not None or sys.getprofile() is not None or gc.get_debug() or gc.callbacks:
        return False
    # Without asking for locks that nobody else can hold, and without calling what has nothing to do.
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
    except BaseException:  # the interpreter comes upon it again, and tells
        return False
    return True


def rehearse_end():
    """Goes through it as far as nobody is called, for the pages that it touches."""
    begin()
    threading = sys.modules.get("threading")
    if atexit._ncallbacks() or (threading is not None and threading._threading_atexits):
        is_anything_noticed()
    elif is_end_unnoticed() and _has_no_library_a_last_word():
        _write_buffers_of_c(None)


def is_anything_noticed():
    """Whether anything is alive that does something when it goes, wherever it is kept."""
    if sys.getallocatedblocks() - _start["blocks"] > _MOST_BLOCKS:
        return True
    objects = gc.get_objects()
    kinds = list(map(type, objects))
    distinct = set(kinds)
    watched = set(filter(_is_watched, distinct))
    is_hidden = _Witness not in distinct
    return is_hidden or any(map(_is_noticed, compress(objects, map(watched.__contains__, kinds))))


def _is_guest_listed():
    """False where the guest itself has frozen what it made."""
    return any(thing is _start["witness"] for thing in gc.get_objects())


def _is_watched(kind):
    lineage = _mro_of(kind)
    return type in lineage or _weakref.ref in lineage or _has_finaliser(kind)


def _has_finaliser(kind):
    """A method of the class, or the C function behind it, which shows under the same name."""
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
_FRAMES = {GeneratorType: "gi", CoroutineType: "cr", AsyncGeneratorType: "ag"}


def _is_suspended(thing):
    """Whether code of it is still to run, or a warning to be given that it never did."""
    prefix = _FRAMES[type(thing)]
    if getattr(thing, f"{prefix}_frame") is None:
        return False
    return prefix != "gi" or getattr(thing, "gi_suspended", True)


def end_at_once(status):
    if status == INTERRUPTED:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)
    if _has_no_library_a_last_word():
        _write_buffers_of_c(None)
        _leave(status)
    _exit_process(status)


def _has_no_library_a_last_word():
    """Those of a plain interpreter do nothing at their end, on thirty pages; the guest has brought no other."""
    return _plain_end and _plain_end[0].value is None


def end_as_any_interpreter(status):
    """Only a line of the zygote's start is left on the stack: what leaves here ends the interpreter."""
    if _is_guest_listed():
        # A module that only `sys.modules` knows goes first, and what it holds must be found by the collector.
        gc.unfreeze()
    if status == INTERRUPTED:
        sys.excepthook = lambda *_: None  # it has been told
        raise KeyboardInterrupt
    raise SystemExit(status)
