"""Instances that have not run yet, each in its own Store.

While idle, the worker instantiates the module that ran last and maps the memory pages that a rehearsal touched. A
rehearsal is a run of one of our own modules with our arguments, so no guest influences what the next one finds mapped.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from ctypes import c_bool, c_char_p, c_size_t, c_uint64, c_void_p
from typing import Any

import wasmtime
from wasm.binary import MEMORY_NAME
from wasm.engine import LoadedModule
from wasm.pages import Range, TouchedPages, anonymous_bytes, images, new_image, populate
from wasm.wasi import SetupFailed, WasiSetup
from wasmtime import _ffi as ffi
from wasmtime._func import maybe_raise_last_exn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wasm.component import LoadedComponent
    from wasmtime import component as components

_MOST_SPARES = 4
#: Our own modules may export this function: it resolves the table entries that runs use, and has no other effect.
_FILL_TABLE = "fill_table"
#: Mapped for a module without a rehearsal: the start of its data and a small stack.
_FIRST_BYTES = 64 << 10


# The C functions of wasmtime that every run calls, with plain addresses: the Python wrappers are far slower. The caller
# keeps the objects behind the addresses alive.


def _function(name: str, result: type[Any] | None, *parameters: type[Any]) -> Any:
    function = ffi.dll[name]  # a new object: the attribute belongs to the package and has its own types
    function.restype, function.argtypes = result, parameters
    return function


_set_argv = _function("wasi_config_set_argv", c_bool, c_void_p, c_size_t, c_void_p)
_set_env = _function("wasi_config_set_env", c_bool, c_void_p, c_size_t, c_void_p, c_void_p)
_set_wasi = _function("wasmtime_context_set_wasi", c_void_p, c_void_p, c_void_p)
_func_call = _function(
    "wasmtime_func_call", c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p
)
#: Arguments: context, number of ticks from now.
set_epoch_deadline = _function("wasmtime_context_set_epoch_deadline", None, c_void_p, c_uint64)
#: Arguments: context, memory.
memory_bytes = _function("wasmtime_memory_data_size", c_size_t, c_void_p, c_void_p)


def context_of(store: wasmtime.Store) -> int:
    """The address of the store's context, valid while the store is open."""
    return ctypes.cast(store._context(), c_void_p).value or 0


def set_wasi(context: int, wasi: wasmtime.WasiConfig) -> None:
    """Replaces the store's configuration and closes the files of the old one."""
    if error := _set_wasi(context, wasi._consume()):
        raise _error(error)


def set_arguments(wasi: wasmtime.WasiConfig, argv: Sequence[str], env: dict[str, str]) -> None:
    config = wasi.ptr()
    if not _set_argv(config, len(argv), _c_strings(argv)):
        raise wasmtime.WasmtimeError("failed to configure argv")
    if env and not _set_env(config, len(env), _c_strings(env), _c_strings(env.values())):
        raise wasmtime.WasmtimeError("failed to configure environment")


def _c_strings(texts: Collection[str]) -> ctypes.Array[c_char_p]:
    return (c_char_p * len(texts))(*map(str.encode, texts))


def _error(address: int) -> wasmtime.WasmtimeError:
    return wasmtime.WasmtimeError._from_ptr(ctypes.cast(address, ctypes.POINTER(ffi.wasmtime_error_t)))


class EntryCall:
    """A prepared call of a module's entry function. Use it once."""

    def __init__(self, context: int, entry: ffi.wasmtime_extern_t, has_result: bool) -> None:
        self._entry = entry
        self._results = (ffi.wasmtime_val_t * has_result)()
        self._trap = ctypes.POINTER(ffi.wasm_trap_t)()
        places = ctypes.addressof(self._results), int(has_result), ctypes.addressof(self._trap)
        self._arguments = (context, ctypes.addressof(entry.of.func), None, 0, *places)

    def __call__(self) -> int:
        """The result as an unsigned number; 0 if the function returns nothing."""
        error = _func_call(*self._arguments)
        if error or self._trap:
            ended = _error(error) if error else wasmtime.Trap._from_ptr(self._trap)
            maybe_raise_last_exn()  # an exception from a host call takes precedence: it is why the guest ended
            raise ended
        return int(self._results[0].of.i32) & 0xFFFFFFFF if self._results else 0


class PreparedInstance:
    """A Store with its limits, and the instance in it once it was made."""

    def __init__(self, loaded: LoadedModule | LoadedComponent, memory_bytes: int) -> None:
        self.loaded, self.memory_bytes = loaded, memory_bytes
        #: For a component: the memory that it uses before it runs.
        self.own_bytes = 0
        self._instance: wasmtime.Instance | components.Instance | None = None
        self._entry_call: EntryCall | None = None
        self._exports: dict[str, ffi.wasmtime_extern_t | None] = {}
        self._setup: WasiSetup | None = None
        self._wasi = self._no_files = wasmtime.WasiConfig()
        self.store = wasmtime.Store(loaded.engine)
        self.context = context_of(self.store)
        set_epoch_deadline(self.context, 1)
        loaded.limit(self.store, memory_bytes)

    def instance(self) -> wasmtime.Instance | components.Instance:
        if self._instance is None:
            self._instance = self.loaded.instantiate(self.store)
        return self._instance

    def export(self, name: str) -> ffi.wasmtime_extern_t | None:
        """An export of a module's instance, looked up once."""
        if name not in self._exports:
            instance = self.instance()
            is_module = isinstance(instance, wasmtime.Instance)
            self._exports[name] = self._find_export(instance, name) if is_module else None
        return self._exports[name]

    def memory_export(self) -> ffi.wasmtime_extern_t | None:
        """The memory under its reserved name. A caller's module may export something else under that name."""
        found = self.export(MEMORY_NAME)
        return found if found is not None and found.kind == ffi.WASMTIME_EXTERN_MEMORY.value else None

    def _find_export(self, instance: wasmtime.Instance, name: str) -> ffi.wasmtime_extern_t | None:
        """Not by `Instance.exports`, which lists all exports: that takes 15 ms for a Go module."""
        item, encoded = ffi.wasmtime_extern_t(), name.encode()
        is_there = ffi.wasmtime_instance_export_get(
            self.store._context(), ctypes.byref(instance._instance), encoded, len(encoded), ctypes.byref(item)
        )
        return item if is_there else None

    def entry_call(self) -> EntryCall:
        """The call that runs a module, made once."""
        if self._entry_call is None:
            facts = self.loaded.facts
            entry = self.export(facts.entry)
            if entry is None:
                raise SetupFailed(f"the compiled module does not export {facts.entry!r}")
            self._entry_call = EntryCall(self.context, entry, facts.has_exit_code)
        return self._entry_call

    def open_wasi(self, setup: WasiSetup) -> wasmtime.WasiConfig:
        """The configuration for a run, without arguments, environment and input. Opened once per setup."""
        if self._setup != setup:
            self._wasi, self._setup = setup.open(), setup
        return self._wasi

    def instantiate_ahead(self, must_stop: Callable[[], bool] = lambda: True) -> Range | None:
        """Instantiates, and maps memory until `must_stop`. Returns the range of the memory if it is known."""
        if not self.loaded.facts.is_component:
            self.entry_call()
            memory = self._memory() if self.loaded.facts.has_visible_memory else None
            self._populate(memory, must_stop)
            self._fill_table(must_stop)
            return memory
        before, bytes_before = images(), anonymous_bytes()
        self.instance()
        memory = new_image(before)
        self._populate(memory, must_stop)
        self.own_bytes = max(0, anonymous_bytes() - bytes_before)
        return memory

    def _fill_table(self, must_stop: Callable[[], bool]) -> None:
        """wasmtime resolves an entry at its first call, which takes longer than many a function runs."""
        if isinstance(self.loaded, LoadedModule) and self.loaded.is_own and not must_stop():
            fill = self.export(_FILL_TABLE)
            if fill is not None:
                EntryCall(self.context, fill, has_result=False)()

    def _memory(self) -> Range | None:
        memory = self.memory_export()
        if memory is None:
            return None
        place = ctypes.byref(memory.of.memory)
        start = ctypes.cast(ffi.wasmtime_memory_data(self.store._context(), place), ctypes.c_void_p).value or 0
        return Range(start, int(ffi.wasmtime_memory_data_size(self.store._context(), place)))

    def _populate(self, memory: Range | None, must_stop: Callable[[], bool]) -> None:
        if memory is not None:
            first = TouchedPages((Range(0, min(_FIRST_BYTES, memory.size)),), ())
            populate(memory, self.loaded.touched or first, must_stop)

    def close_files(self) -> None:
        """Closes the guest's files; `close` frees its memory."""
        set_wasi(self.context, self._no_files)

    def close(self) -> None:
        self.store.close()


class SpareInstances:
    """At most one for each of the last modules. A spare is used once, under the limits it was made with."""

    def __init__(self) -> None:
        self._spares: OrderedDict[int, PreparedInstance] = OrderedDict()

    def take(self, loaded: LoadedModule | LoadedComponent, memory_bytes: int) -> PreparedInstance | None:
        spare = self._spares.pop(id(loaded), None)
        if spare is None or spare.memory_bytes == memory_bytes:
            return spare
        spare.close()
        return None

    def put(self, spare: PreparedInstance) -> None:
        self.drop(spare.loaded)
        self._spares[id(spare.loaded)] = spare
        if len(self._spares) > _MOST_SPARES:
            self._spares.popitem(last=False)[1].close()

    def drop(self, loaded: LoadedModule | LoadedComponent) -> None:
        spare = self._spares.pop(id(loaded), None)
        if spare is not None:
            spare.close()
