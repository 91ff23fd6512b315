"""Engines for our own components (the Python interpreter), and components loaded into them. WASI preview 2."""

from __future__ import annotations

import wasmtime
from wasm.engine import ModuleFacts, Refused, make_engine, one_line
from wasm.pages import TouchedPages
from wasmtime import component as components


class LoadedComponent:
    """A component that is ready to be instantiated any number of times."""

    def __init__(
        self, component: components.Component, linker: components.Linker, engine: wasmtime.Engine, facts: ModuleFacts
    ) -> None:
        self.component = component
        self.linker = linker
        self.engine = engine
        self.facts = facts
        #: Pages that a rehearsal touched.
        self.touched: TouchedPages | None = None

    def limit(self, store: wasmtime.Store, memory_bytes: int) -> None:
        store.set_limits(memory_size=memory_bytes)

    def instantiate(self, store: wasmtime.Store) -> components.Instance:
        return self.linker.instantiate(store, self.component)


class ComponentEngines:
    """Engines with the component model enabled, separate from the engines for callers' modules."""

    def __init__(self) -> None:
        self._made: dict[bool, tuple[wasmtime.Engine, components.Linker]] = {}

    def interrupt_all(self) -> None:
        for engine, _ in list(self._made.values()):
            engine.increment_epoch()

    def compile(self, data: bytes, entry: str, needs_fuel: bool) -> LoadedComponent:
        engine, linker = self._engine(needs_fuel)
        component, facts = compile_component(engine, data, entry)
        return LoadedComponent(component, linker, engine, facts)

    def adopt(self, facts: ModuleFacts, needs_fuel: bool, descriptor: int) -> LoadedComponent:
        engine, linker = self._engine(needs_fuel)
        try:
            component = components.Component.deserialize_file(engine, f"/proc/self/fd/{descriptor}")
        except wasmtime.WasmtimeError as error:
            raise Refused("stale", one_line(error)) from None
        return LoadedComponent(component, linker, engine, facts)

    def _engine(self, needs_fuel: bool) -> tuple[wasmtime.Engine, components.Linker]:
        if needs_fuel not in self._made:
            engine = make_engine(needs_fuel, has_components=True)
            linker = components.Linker(engine)
            linker.add_wasip2()
            self._made[needs_fuel] = (engine, linker)
        return self._made[needs_fuel]


def compile_component(engine: wasmtime.Engine, data: bytes, entry: str) -> tuple[components.Component, ModuleFacts]:
    try:
        component = components.Component(engine, data)
    except wasmtime.WasmtimeError as error:
        raise Refused("invalid", f"invalid component: {one_line(error)}") from None
    facts = ModuleFacts(
        entry,
        has_exit_code=True,
        is_go=False,
        has_visible_memory=False,
        counts_refusals=False,
        is_component=True,
        is_quiet_at_start=True,
    )
    return component, facts
