"""Pickles the variables of a session, including functions and classes that cells have defined.

Modules are pickled by name, functions and classes of cells by code and attributes, open regular files by path and
offset. Both ends run in cages with the guest's rights, so unpickling a crafted object gains a guest nothing.
"""

import functools
import importlib
import io
import marshal
import pickle
import sys
import types

from . import session_files

#: Smaller buffers are part of the pickle: each mapping costs the kernel a record, of which a process may have 65,530.
LARGE_BUFFER = 1 << 18


class VariablePickler(pickle.Pickler):
    """`files` collects every descriptor that a file object refers to, and `buffers` large buffers, which stay apart."""

    def __init__(self, file, files, buffers):
        super().__init__(file, protocol=5, buffer_callback=lambda buffer: not _is_apart(buffer, buffers))
        self._files = files

    def reducer_override(self, value):
        kind = type(value)
        if kind is types.FunctionType:
            return NotImplemented if _is_found(value) else _function(value)
        if isinstance(value, type):
            return NotImplemented if _is_found(value) else _class(value)
        if kind in session_files.KINDS:
            return session_files.reduce_file(value, self._files)
        reducer = _REDUCERS.get(kind)
        return NotImplemented if reducer is None else reducer(value)


def _is_apart(buffer, buffers):
    """Collects a buffer that is large enough to be mapped by the reader."""
    try:
        size = buffer.raw().nbytes
    except BufferError:  # not contiguous
        return False
    if size >= LARGE_BUFFER:
        buffers.append(buffer)
    return size >= LARGE_BUFFER


def _is_found(value):
    """Whether importing its module gives the same object. `__main__` is empty at that time."""
    module = getattr(value, "__module__", None)
    if module == "__main__" or module not in sys.modules:
        return False
    found = sys.modules[module]
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


# ---- functions ----


def _function(function):
    state = {
        name: getattr(function, name)
        for name in ("__defaults__", "__kwdefaults__", "__qualname__", "__module__", "__doc__", "__dict__")
    }
    try:
        state["__annotations__"] = function.__annotations__
    except Exception:  # newer Pythons evaluate them here, which may fail
        state["__annotations__"] = {}
    made = (function.__code__, _globals_of(function), function.__name__, function.__closure__)
    return make_function, made, state, None, None, fill_function


def _globals_of(function):
    """A module's name, or the dictionary itself if it does not belong to a module."""
    name = function.__globals__.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return name if module is not None and vars(module) is function.__globals__ else function.__globals__


def make_function(code, where, name, closure):
    names = vars(importlib.import_module(where)) if isinstance(where, str) else where
    return types.FunctionType(code, names, name, None, closure)


def fill_function(function, state):
    function.__dict__.update(state.pop("__dict__"))
    for name, value in state.items():
        setattr(function, name, value)


def _cell(cell):
    try:
        return make_cell, (), (cell.cell_contents,), None, None, fill_cell
    except ValueError:  # empty cell
        return make_cell, ()


def make_cell():
    return types.CellType()


def fill_cell(cell, state):
    (cell.cell_contents,) = state


# ---- classes ----

#: Created with the class; cannot be set.
_OF_THE_CLASS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_NOT_CARRIED = ("_abc_impl", "__dict__", "__weakref__", "__classcell__", "__annotations_cache__")
#: Needed by `type.__new__` and `__init_subclass__`.
_AT_BIRTH = ("__slots__", "__orig_bases__", "__module__", "__qualname__")


def _class(kind):
    if kind in _NAMED_TYPES:
        return getattr, (types, _NAMED_TYPES[kind])
    if kind.__module__ == "builtins" or not kind.__flags__ & 1 << 9:  # Py_TPFLAGS_HEAPTYPE
        return NotImplemented
    if "enum" in sys.modules and issubclass(kind, sys.modules["enum"].Enum):
        return _enumeration(kind)
    own = {
        name: value
        for name, value in vars(kind).items()
        if name not in _NOT_CARRIED and not isinstance(value, _OF_THE_CLASS)
    }
    birth = {name: own.pop(name) for name in _AT_BIRTH if name in own}
    return make_class, (type(kind), kind.__name__, kind.__bases__, birth), own, None, None, fill_class


def make_class(meta, name, bases, birth):
    return types.new_class(name, bases, {"metaclass": meta}, lambda body: body.update(birth))


def fill_class(kind, own):
    for name, value in own.items():
        type.__setattr__(kind, name, value)


def _enumeration(kind):
    enum = sys.modules["enum"]
    members = {name: member.value for name, member in kind.__members__.items()}
    functions = (types.FunctionType, classmethod, staticmethod, property)
    own = {name: value for name, value in vars(kind).items() if isinstance(value, functions) and name != "__new__"}
    own = {name: value for name, value in own.items() if _is_of(kind, value)}
    new = vars(kind).get("__new_member__")
    if isinstance(new, types.FunctionType) and new is not enum.Enum.__new__:
        own["__new__"] = new
    own.pop("__new_member__", None)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, **own}
    return make_enumeration, (type(kind), kind.__name__, kind.__bases__, names, members)


def _is_of(kind, value):
    """Whether the class statement defined it; other members are created with the class."""
    inner = getattr(value, "fget", None) or getattr(value, "__func__", value)
    return getattr(inner, "__module__", None) == kind.__module__


def make_enumeration(meta, name, bases, names, members):
    body = meta.__prepare__(name, bases)
    for key, value in (*names.items(), *members.items()):
        body[key] = value
    return meta(name, bases, body)


# ---- other types ----


def _module(module):
    if sys.modules.get(module.__name__) is not module:
        raise pickle.PicklingError(f"the module {module.__name__!r} cannot be imported by its name")
    return importlib.import_module, (module.__name__,)


def _lock(lock):
    return make_lock, (lock.locked(),)


def make_lock(is_locked):
    import threading

    lock = threading.Lock()
    if is_locked:
        lock.acquire()
    return lock


def make_reentrant_lock():
    import threading

    return threading.RLock()


def _cached_function(function):
    """Without its cached results."""
    if _is_found(function):
        return NotImplemented
    return make_cached_function, (function.__wrapped__, function.cache_parameters())


def make_cached_function(function, parameters):
    return functools.lru_cache(**parameters)(function)


def _type_variable(variable):
    if variable.__module__ != "__main__":
        return NotImplemented
    flags = {"covariant": variable.__covariant__, "contravariant": variable.__contravariant__}
    return make_type_variable, (variable.__name__, variable.__constraints__, variable.__bound__, flags)


def make_type_variable(name, constraints, bound, flags):
    made = sys.modules["typing"].TypeVar(name, *constraints, bound=bound, **flags)
    made.__module__ = "__main__"
    return made


def _mark_of_dataclasses(mark):
    """Sentinels of dataclasses, which are compared by identity."""
    module = sys.modules["dataclasses"]
    return getattr, (module, next(name for name, value in vars(module).items() if value is mark))


def _reducers():
    import _thread

    reducers = {
        types.ModuleType: _module,
        types.CodeType: lambda code: (marshal.loads, (marshal.dumps(code),)),
        types.CellType: _cell,
        types.MappingProxyType: lambda proxy: (types.MappingProxyType, (dict(proxy),)),
        property: lambda made: (property, (made.fget, made.fset, made.fdel, made.__doc__)),
        staticmethod: lambda made: (staticmethod, (made.__func__,)),
        classmethod: lambda made: (classmethod, (made.__func__,)),
        _thread.LockType: _lock,
        _thread.RLock: lambda lock: (make_reentrant_lock, ()),
        type(functools.lru_cache(_lock)): _cached_function,
    }
    if "typing" in sys.modules:
        reducers[sys.modules["typing"].TypeVar] = _type_variable
    if "dataclasses" in sys.modules:
        names = ("MISSING", "KW_ONLY", "_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR", "_HAS_DEFAULT_FACTORY")
        marks = [getattr(sys.modules["dataclasses"], name, None) for name in names]
        reducers.update({type(mark): _mark_of_dataclasses for mark in marks if mark is not None})
    return reducers


_NAMED_TYPES = {value: name for name, value in vars(types).items() if isinstance(value, type)}
_NAMED_TYPES.pop(types.SimpleNamespace, None)
_REDUCERS = {}


def dump_value(value, file, files, buffers):
    """Pickles the value to `file`. Reducers are updated first, for modules that were imported since the last call."""
    _REDUCERS.update(_reducers())
    VariablePickler(file, files, buffers).dump(value)


class _Nowhere(io.RawIOBase):
    def writable(self):
        return True

    def write(self, data):
        return memoryview(data).nbytes


def complaint(value):
    """Why the value cannot be pickled, or None."""
    try:
        dump_value(value, _Nowhere(), set(), [])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
