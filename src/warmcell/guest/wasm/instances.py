"""Instances that have not run yet, each in its own Store.

While idle, the worker instantiates the module that ran last and maps the memory pages that a rehearsal touched. A
rehearsal is a run of one of our own modules with our arguments, so no guest influences what the next one finds mapped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import wasmtime
from wasm.binary import MEMORY_NAME
from wasm.direct_calls import EntryCall, context_of, set_epoch_deadline, set_wasi
from wasm.engine import LoadedModule
from wasm.memory import find_export, memory_address, memory_size
from wasm.pages import Range, TouchedPages, anonymous_bytes, images, new_image, populate
from wasm.wasi_setup import SetupFailed, WasiSetup
from wasmtime import _ffi as ffi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wasm.component import LoadedComponent
    from wasmtime import component as components

_MOST_SPARES = 4
#: Our own modules may export this function: it resolves the table entries that runs use, and has no other effect.
_FILL_TABLE = "fill_table"
#: Mapped for a module without a rehearsal: the start of its data and a small stack.
_FIRST_BYTES = 64 << 10


class PreparedInstance:
    """A Store with its limits, and the instance in it once it was made."""

    def __init__(self, loaded: LoadedModule | LoadedComponent, memory_bytes: int) -> None:
        self.loaded = loaded
        self.memory_bytes = memory_bytes
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
            self._exports[name] = find_export(self.store, instance, name) if is_module else None
        return self._exports[name]

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
        memory = self.export(MEMORY_NAME)
        return (
            Range(memory_address(self.store, memory), memory_size(self.store, memory)) if memory is not None else None
        )

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
