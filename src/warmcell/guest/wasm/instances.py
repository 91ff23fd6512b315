"""Instances that have run nothing yet, each in the Store that it will die with.

While the worker has nothing to do it makes one ahead for the module that ran last, and has those pages of its memory
ready that a rehearsal touched. A rehearsal is a run of one of our own modules with arguments of ours: what guests do
never decides what the next one finds ready.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import wasmtime
from wasm.binary import MEMORY_NAME
from wasm.direct_calls import EntryCall, context_of, give_wasi, set_epoch_deadline
from wasm.engine import Loaded
from wasm.memory import find_export, memory_address, memory_size
from wasm.pages import Range, Touched, anonymous_bytes, images, make_ready, new_image
from wasm.world import Broken, World
from wasmtime import _ffi as ffi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wasm.component import LoadedComponent
    from wasmtime import component as components

_MOST_SPARES = 4
#: What a module of ours may export: it makes the entries of its table that runs need, and changes nothing.
_FILL_TABLE = "fill_table"
#: Of a module that was not rehearsed: where its data begins, and a small stack.
_FIRST_BYTES = 64 << 10


class PreparedInstance:
    """A Store with its limits, and the instance in it as soon as there is one."""

    def __init__(self, loaded: Loaded | LoadedComponent, memory_bytes: int) -> None:
        self.loaded = loaded
        self.memory_bytes = memory_bytes
        #: What a component made ahead holds before it runs; for modules nobody asks.
        self.own_bytes = 0
        self._instance: wasmtime.Instance | components.Instance | None = None
        self._entry_call: EntryCall | None = None
        self._exports: dict[str, ffi.wasmtime_extern_t | None] = {}
        self._world: World | None = None
        self._wasi = self._nothing = wasmtime.WasiConfig()
        self.store = wasmtime.Store(loaded.engine)
        self.context = context_of(self.store)
        set_epoch_deadline(self.context, 1)
        loaded.limit(self.store, memory_bytes)

    def instance(self) -> wasmtime.Instance | components.Instance:
        if self._instance is None:
            self._instance = self.loaded.instantiate(self.store)
        return self._instance

    def exported(self, name: str) -> ffi.wasmtime_extern_t | None:
        """Of a module's instance. Looked for once: one that was made ahead has done so already."""
        if name not in self._exports:
            instance = self.instance()
            is_module = isinstance(instance, wasmtime.Instance)
            self._exports[name] = find_export(self.store, instance, name) if is_module else None
        return self._exports[name]

    def entry_call(self) -> EntryCall:
        """What runs a module. Made once, like its exports."""
        if self._entry_call is None:
            facts = self.loaded.facts
            entry = self.exported(facts.entry)
            if entry is None:
                raise Broken(f"the compiled module has no {facts.entry!r}")
            self._entry_call = EntryCall(self.context, entry, facts.has_exit_code)
        return self._entry_call

    def wasi_for(self, world: World) -> wasmtime.WasiConfig:
        """What the guest will be given, all but what its caller says: arguments, environment, input."""
        if self._world != world:
            self._wasi, self._world = world.opened(), world
        return self._wasi

    def make_ahead(self, must_stop: Callable[[], bool] = lambda: True) -> Range | None:
        """Instantiates, and has memory ready until it must stop. Returns where the memory is, if that is known."""
        if not self.loaded.facts.is_component:
            self.entry_call()
            memory = self._memory() if self.loaded.facts.has_visible_memory else None
            self._have_ready(memory, must_stop)
            self._fill_table(must_stop)
            return memory
        before, bytes_before = images(), anonymous_bytes()
        self.instance()
        memory = new_image(before)
        self._have_ready(memory, must_stop)
        self.own_bytes = max(0, anonymous_bytes() - bytes_before)
        return memory

    def _fill_table(self, must_stop: Callable[[], bool]) -> None:
        """wasmtime makes an entry when it is first called, which takes a run longer than many a function."""
        if isinstance(self.loaded, Loaded) and self.loaded.is_own and not must_stop():
            fill = self.exported(_FILL_TABLE)
            if fill is not None:
                EntryCall(self.context, fill, has_result=False)()

    def _memory(self) -> Range | None:
        memory = self.exported(MEMORY_NAME)
        return (
            Range(memory_address(self.store, memory), memory_size(self.store, memory)) if memory is not None else None
        )

    def _have_ready(self, memory: Range | None, must_stop: Callable[[], bool]) -> None:
        if memory is not None:
            first = Touched((Range(0, min(_FIRST_BYTES, memory.size)),), ())
            make_ready(memory, self.loaded.touched or first, must_stop)

    def let_go(self) -> None:
        """Closes what the guest had open; its memory goes with `close`."""
        give_wasi(self.context, self._nothing)

    def close(self) -> None:
        self.store.close()


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
