"""Components of ours (the Python interpreter): one Store per run, WASI preview 2, the same verdicts as for modules.

The component exports `run(argv, env, cwd, seed) -> s32`. It sleeps in short pieces, between which the epoch ends it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import wasmtime
from wasm_clock import Clock, DeadlineReached
from wasm_engine import Facts, Refused, make_engine, one_line
from wasm_run import Broken, Outcome, Spec, give_wasi, trap_text
from wasmtime import component as components

_SEED_BYTES = 32
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Python turns refused growth into MemoryError long after the fact; this much of the limit in use and a failure at the
#: end is taken for a failure for lack of memory.
_NEARLY_ALL = 0.5


@dataclass
class LoadedComponent:
    """A component that is ready to be instantiated any number of times."""

    component: components.Component
    linker: components.Linker
    engine: wasmtime.Engine
    facts: Facts


class ComponentEngines:
    """Engines that know components, apart from those of modules: callers' modules never meet this proposal."""

    def __init__(self) -> None:
        self._made: dict[bool, tuple[wasmtime.Engine, components.Linker]] = {}

    def interrupt_all(self) -> None:
        for engine, _ in list(self._made.values()):
            engine.increment_epoch()

    def compile(self, data: bytes, entry: str, needs_fuel: bool) -> LoadedComponent:
        engine, linker = self._engine(needs_fuel)
        try:
            component = components.Component(engine, data)
        except wasmtime.WasmtimeError as error:
            raise Refused("invalid", f"invalid component: {one_line(error)}") from None
        facts = Facts(
            entry, has_exit_code=True, is_go=False, is_witnessed=False, counts_refusals=False, is_component=True
        )
        return LoadedComponent(component, linker, engine, facts)

    def adopt(self, facts: Facts, needs_fuel: bool, descriptor: int) -> LoadedComponent:
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


def run_component(loaded: LoadedComponent, spec: Spec, clock: Clock) -> Outcome:
    """One run. The arguments are parameters: the snapshot inside froze what WASI said when it was made."""
    store = wasmtime.Store(loaded.engine)
    try:
        before = _anonymous_bytes()
        store.set_epoch_deadline(1)
        store.set_limits(memory_size=spec.memory_bytes)
        if spec.fuel is not None:
            store.set_fuel(spec.fuel)
        give_wasi(store, spec)
        outcome = _execute(store, loaded, spec, clock)
        outcome.memory_bytes = max(0, _anonymous_bytes() - before)
        outcome.fuel_left = store.get_fuel() if spec.fuel is not None else 0
        return _with_memory_verdict(outcome, spec)
    except (Broken, OSError) as error:
        return Outcome("failed", message=one_line(error))
    finally:
        store.close()


def _execute(store: wasmtime.Store, loaded: LoadedComponent, spec: Spec, clock: Clock) -> Outcome:
    try:
        instance = loaded.linker.instantiate(store, loaded.component)
        run = instance.get_func(store, loaded.facts.entry)
        if run is None:
            raise Broken(f"the component has no {loaded.facts.entry!r}")
        status = run(store, spec.argv, list(spec.env.items()), spec.env.get("PWD", "/"), os.urandom(_SEED_BYTES))
        return Outcome("exit", int(status) & 0xFF)
    except DeadlineReached:
        return Outcome("timeout")
    except wasmtime.ExitTrap as leaving:
        return Outcome("exit", leaving.code & 0xFF)
    except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
        return _judge(str(error), clock)


def _judge(message: str, clock: Clock) -> Outcome:
    """Calls of components raise plain errors; what happened is only in their text."""
    if "wasm trap: interrupt" in message and clock.has_passed():
        return Outcome("timeout")
    if "all fuel consumed" in message:
        return Outcome("fuel")
    if "exceeds memory limits" in message:
        return Outcome("memory", 1, message)
    return Outcome("trap", 1, trap_text(message))


def _with_memory_verdict(outcome: Outcome, spec: Spec) -> Outcome:
    has_failed = outcome.kind == "trap" or (outcome.kind == "exit" and outcome.exit_code != 0)
    if has_failed and outcome.memory_bytes > _NEARLY_ALL * spec.memory_bytes:
        outcome.kind = "memory"
    return outcome


def _anonymous_bytes() -> int:
    _, resident, shared, *_ = Path("/proc/self/statm").read_bytes().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES
