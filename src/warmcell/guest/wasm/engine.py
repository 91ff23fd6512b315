"""Engines with an explicit list of enabled proposals, and modules loaded into them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import wasmtime
from wasm.binary import Outline, Unreadable
from wasm.growth_counter import add_growth_counter
from wasm.pages import TouchedPages
from wasmtime import _ffi as ffi

#: Every switch is set, so that a new default of wasmtime enables nothing. Those that are off could escape a limit
#: (threads: shared memories ignore the limiter; memory64 and multi-memory: more than one bounded memory; GC: a
#: separate heap) or are new code in the compiler.
PROPOSALS = {
    "bulk_memory": True,
    "multi_value": True,
    "reference_types": True,
    "simd": True,
    "tail_call": True,
    "component_model": False,
    "custom_page_sizes": False,
    "exceptions": False,
    "function_references": False,
    "gc": False,
    "memory64": False,
    "multi_memory": False,
    "relaxed_simd": False,
    "stack_switching": False,
    "threads": False,
    "wide_arithmetic": False,
}
MAX_STACK_BYTES = 2 << 20
MAX_TABLES = 8
_MAX_TABLE_ELEMENTS = 1_000_000
_ELEMENT_BYTES = 8
WASI = "wasi_snapshot_preview1"
HOST = "sandbox"


class Refused(Exception):
    """The module cannot be run. `reason` is for the supervisor, the text for the caller."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ModuleFacts(NamedTuple):
    """What a run needs to know about a module besides its code; stored with the compiled form."""

    entry: str
    has_exit_code: bool
    is_go: bool
    has_visible_memory: bool
    counts_refusals: bool
    is_component: bool = False
    #: Instantiating it runs no guest code, so an instance can be made in advance.
    is_quiet_at_start: bool = False


class LoadedModule:
    """A module that is ready to be instantiated any number of times."""

    def __init__(self, pre: wasmtime.InstancePre, engine: wasmtime.Engine, facts: ModuleFacts, is_own: bool) -> None:
        self.pre = pre
        self.engine = engine
        self.facts = facts
        #: Shipped with Warmcell.
        self.is_own = is_own
        #: Pages that a rehearsal touched; for our own modules.
        self.touched: TouchedPages | None = None

    def limit(self, store: wasmtime.Store, memory_bytes: int) -> None:
        store.set_limits(
            memory_size=memory_bytes,
            table_elements=min(_MAX_TABLE_ELEMENTS, memory_bytes // (MAX_TABLES * _ELEMENT_BYTES)),
            instances=1,
            tables=MAX_TABLES,
            memories=1,
        )

    def instantiate(self, store: wasmtime.Store) -> wasmtime.Instance:
        return self.pre.instantiate(store)


class ModuleInput(NamedTuple):
    """What to load: a module as the caller gave it, or a compiled form that the supervisor vouches for."""

    format: str
    blob: bytes
    entry: str
    needs_fuel: bool
    has_host: bool


#: What portable code may use beyond the architecture's baseline: every such processor has had it since 2009.
PORTABLE_FLAGS = {"x86_64": ("has_sse3", "has_ssse3", "has_sse41", "has_sse42", "has_popcnt")}


@functools.lru_cache(maxsize=1)
def _can_seal() -> bool:
    """Whether memory can start as a sealed file. In our cage, memory files are ordinary files, and counted."""
    if not hasattr(os, "memfd_create"):
        return True  # wasmtime then uses something else
    import fcntl

    try:
        file = os.memfd_create("warmcell-seal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
        finally:
            os.close(file)
    except OSError:
        return False
    return True


def make_engine(needs_fuel: bool, *, has_components: bool = False, target: str | None = None) -> wasmtime.Engine:
    """An engine for this processor, or for a portable target such as `x86_64-unknown-linux-gnu`."""
    config = wasmtime.Config()
    if target is not None:
        config.target = target
        for flag in PORTABLE_FLAGS.get(target.partition("-")[0], ()):
            config.cranelift_flag_enable(flag)
    for name, is_allowed in PROPOSALS.items():
        setattr(config, f"wasm_{name}", is_allowed)
    config.wasm_component_model = has_components
    config.gc_support = False
    config.epoch_interruption = True
    config.consume_fuel = needs_fuel
    config.max_wasm_stack = MAX_STACK_BYTES
    if not _can_seal():
        ffi.wasmtime_config_memory_init_cow_set(config.ptr(), False)
    return wasmtime.Engine(config)


class HostFunction(NamedTuple):
    """A function that guests import, with its number of i32 parameters and results."""

    parameters: int
    results: int
    function: Callable[..., Any]

    def signature(self) -> wasmtime.FuncType:
        """New for each engine: wasmtime binds a type to the first engine that uses it."""
        i32 = wasmtime.ValType.i32()
        return wasmtime.FuncType([i32] * self.parameters, [i32] * self.results)


HostFunctions = dict[tuple[str, str], HostFunction]


class Engines:
    """One engine with fuel and one without, made on first use, each with a linker per kind of guest."""

    def __init__(self, wasi_functions: HostFunctions, host_functions: HostFunctions) -> None:
        self._wasi_functions = wasi_functions
        self._host_functions = host_functions
        self._engines: dict[bool, wasmtime.Engine] = {}
        self._linkers: dict[tuple[bool, bool], wasmtime.Linker] = {}

    def engine(self, needs_fuel: bool) -> wasmtime.Engine:
        if needs_fuel not in self._engines:
            self._engines[needs_fuel] = make_engine(needs_fuel)
        return self._engines[needs_fuel]

    def linker(self, needs_fuel: bool, has_host: bool) -> wasmtime.Linker:
        key = (needs_fuel, has_host)
        if key not in self._linkers:
            self._linkers[key] = self._make_linker(self.engine(needs_fuel), has_host)
        return self._linkers[key]

    def _make_linker(self, engine: wasmtime.Engine, has_host: bool) -> wasmtime.Linker:
        linker = wasmtime.Linker(engine)
        linker.define_wasi()
        linker.allow_shadowing = True
        functions = {**self._wasi_functions, **(self._host_functions if has_host else {})}
        for (module, name), host in functions.items():
            linker.define_func(module, name, host.signature(), host.function, access_caller=True)
        return linker

    def interrupt_all(self) -> None:
        """Makes every running guest trap at its next epoch check."""
        for engine in list(self._engines.values()):
            engine.increment_epoch()

    def compile(self, source: ModuleInput) -> tuple[LoadedModule, wasmtime.Module]:
        """Compiles and resolves the imports. Raises `Refused` with the reason."""
        module, facts = compile_module(self.engine(source.needs_fuel), source)
        return self._resolve(module, facts, source), module

    def adopt(self, source: ModuleInput, facts: ModuleFacts, descriptor: int) -> LoadedModule:
        """Loads code that was compiled earlier. Such a descriptor only ever comes from the supervisor's cache."""
        engine = self.engine(source.needs_fuel)
        try:
            module = wasmtime.Module.deserialize_file(engine, f"/proc/self/fd/{descriptor}")
        except wasmtime.WasmtimeError as error:
            raise Refused("stale", one_line(error)) from None
        return self._resolve(module, facts, source)

    def _resolve(self, module: wasmtime.Module, facts: ModuleFacts, source: ModuleInput) -> LoadedModule:
        try:
            pre = self.linker(source.needs_fuel, source.has_host).instantiate_pre(module)
        except wasmtime.WasmtimeError as error:
            raise Refused("import", one_line(error)) from None
        return LoadedModule(pre, self.engine(source.needs_fuel), facts, source.has_host)


def compile_module(engine: wasmtime.Engine, source: ModuleInput) -> tuple[wasmtime.Module, ModuleFacts]:
    binary = _binary_of(source)
    counted, shape = _with_growth_counter(binary)
    try:
        module = wasmtime.Module(engine, counted)
    except wasmtime.WasmtimeError:
        # Offsets and indices in the message must be those of the caller's module.
        module, shape.memories, shape.counts_refusals = _original(engine, binary), 0, False
    return module, _facts(shape, source.entry)


def _binary_of(source: ModuleInput) -> bytes:
    if source.format != "wat":
        return source.blob
    try:
        return bytes(wasmtime.wat2wasm(source.blob))
    except wasmtime.WasmtimeError as error:
        raise Refused("invalid", f"invalid WAT: {one_line(error)}") from None


def _with_growth_counter(binary: bytes) -> tuple[bytes, Outline]:
    try:
        return add_growth_counter(binary)
    except Unreadable:
        return binary, Outline()


def _original(engine: wasmtime.Engine, binary: bytes) -> wasmtime.Module:
    try:
        return wasmtime.Module(engine, binary)
    except wasmtime.WasmtimeError as error:
        raise Refused("invalid", f"invalid module: {one_line(error)}") from None


def _facts(shape: Outline, entry: str) -> ModuleFacts:
    signature = shape.signature_of_export(entry)
    if signature is None:
        raise Refused("entry", f"the module does not export the function {entry!r}")
    if signature not in ((b"", b""), (b"", b"\x7f")):
        raise Refused("entry", f"{entry!r} must take no parameters and return nothing or one i32")
    return ModuleFacts(
        entry,
        bool(signature[1]),
        shape.is_go,
        has_visible_memory=shape.memories > 0,
        counts_refusals=shape.counts_refusals,
        is_quiet_at_start=not shape.has_start,
    )


def one_line(error: Exception, most: int = 1000) -> str:
    """The message on one line, cut to `most` characters."""
    return " ".join(str(error).split())[:most]


def write_compiled(serialized: bytearray, descriptor: int) -> bool:
    """Writes into the supervisor's file; False if that fails. The module can still be run."""
    view = memoryview(serialized)
    written = 0
    try:
        while written < len(view):
            written += os.write(descriptor, view[written:])
    except OSError:
        return False
    return True
