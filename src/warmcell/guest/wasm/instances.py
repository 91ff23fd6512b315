"""Instances that have run nothing yet, each in the Store that it will die with.

While the worker has nothing to do it makes one ahead for the module that ran last, and has those pages of its memory
ready that a rehearsal touched. A rehearsal is a run of one of our own modules with arguments of ours: what guests do
never decides what the next one finds ready.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable

import wasmtime
from wasm.binary import MEMORY_NAME
from wasm.engine import Loaded
from wasm.memory import find_export, memory_bounds
from wasm.pages import Range, anonymous_bytes, images, make_ready, new_image
from wasmtime import _ffi as ffi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wasm.component import LoadedComponent
    from wasmtime import component as components

_MOST_SPARES = 4


class PreparedInstance:
    """A Store with its limits, and the instance in it as soon as there is one."""

    def __init__(self, loaded: Loaded | LoadedComponent, memory_bytes: int) -> None:
        self.loaded = loaded
        self.memory_bytes = memory_bytes
        #: What a component made ahead holds before it runs; for modules nobody asks.
        self.own_bytes = 0
        self._instance: wasmtime.Instance | components.Instance | None = None
        self._output = ("", "")
        self._wasi = self._nothing = wasmtime.WasiConfig()
        self.store = wasmtime.Store(loaded.engine)
        self.store.set_epoch_deadline(1)
        loaded.limit(self.store, memory_bytes)

    def instance(self) -> wasmtime.Instance | components.Instance:
        if self._instance is None:
            self._instance = self.loaded.instantiate(self.store)
        return self._instance

    def wasi_for(self, stdout: str, stderr: str) -> wasmtime.WasiConfig:
        """What the guest will be given: an empty standard input and its output; all else is still to be added."""
        if self._output != (stdout, stderr):
            self._output, self._wasi = (stdout, stderr), wasmtime.WasiConfig()
            self._wasi.stdout_file, self._wasi.stderr_file = stdout, stderr
            give_stdin(self._wasi, b"")
        return self._wasi

    def make_ahead(self, must_stop: Callable[[], bool] = lambda: True) -> Range | None:
        """Instantiates, and has memory ready until it must stop. Returns where the memory is, if that is known."""
        if not self.loaded.facts.is_component:
            memory = _memory_of(self.store, self.instance()) if self.loaded.facts.has_visible_memory else None
            self._have_ready(memory, must_stop)
            return memory
        before, bytes_before = images(), anonymous_bytes()
        self.instance()
        memory = new_image(before)
        self._have_ready(memory, must_stop)
        self.own_bytes = max(0, anonymous_bytes() - bytes_before)
        return memory

    def _have_ready(self, memory: Range | None, must_stop: Callable[[], bool]) -> None:
        if memory is not None and self.loaded.touched is not None:
            make_ready(memory, self.loaded.touched, must_stop)

    def let_go(self) -> None:
        """Closes what the guest had open; its memory goes with `close`."""
        self.store.set_wasi(self._nothing)

    def close(self) -> None:
        self.store.close()


def give_stdin(wasi: wasmtime.WasiConfig, data: bytes) -> None:
    """As bytes, never as a pipe: wasmtime reads pipes on threads of its own, and a read from one cannot be stopped."""
    vector = ffi.wasm_byte_vec_t(0, None)
    if data:
        start = ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8))
        ffi.wasm_byte_vec_new(ctypes.byref(vector), len(data), start)
    ffi.wasi_config_set_stdin_bytes(wasi.ptr(), ctypes.byref(vector))


def _memory_of(store: wasmtime.Store, instance: wasmtime.Instance | components.Instance) -> Range | None:
    memory = find_export(store, instance, MEMORY_NAME) if isinstance(instance, wasmtime.Instance) else None
    return Range(*memory_bounds(store, memory)) if memory is not None else None


class SpareInstances:
    """At most one for each of the modules that ran last. A spare is used once, under the limits it was made for."""

    def __init__(self) -> None:
        self._spares: OrderedDict[int, PreparedInstance] = OrderedDict()

    def take(self, loaded: Loaded | LoadedComponent, memory_bytes: int) -> PreparedInstance | None:
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

    def drop(self, loaded: Loaded | LoadedComponent) -> None:
        spare = self._spares.pop(id(loaded), None)
        if spare is not None:
            spare.close()
