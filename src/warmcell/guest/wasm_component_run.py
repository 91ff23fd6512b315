"""One run of a component of ours, and the same verdicts as for modules.

The component exports `run(argv, env, cwd, seed) -> s32`. It sleeps in short pieces, between which the epoch ends it.
"""

from __future__ import annotations

import os

import wasmtime
from wasm_clock import Clock, DeadlineReached
from wasm_engine import one_line
from wasm_fresh import Fresh
from wasm_pages import anonymous_bytes
from wasm_run import Broken, Outcome, Spec, get_ready, trap_text
from wasmtime import component as components

_SEED_BYTES = 32
#: Python turns refused growth into MemoryError long after the fact; this much of the limit in use and a failure at the
#: end is taken for a failure for lack of memory.
_NEARLY_ALL = 0.5


def run_component(fresh: Fresh, spec: Spec, clock: Clock) -> Outcome:
    """One run. The arguments are parameters: the snapshot inside froze what WASI said when it was made."""
    try:
        before = anonymous_bytes() - fresh.own_bytes
        get_ready(fresh, spec)
        outcome = _execute(fresh, spec, clock)
        outcome.memory_bytes = max(0, anonymous_bytes() - before)
        outcome.fuel_left = fresh.store.get_fuel() if spec.fuel is not None else 0
        return _with_memory_verdict(outcome, spec)
    except (Broken, OSError) as error:
        return Outcome("failed", message=one_line(error))


def _execute(fresh: Fresh, spec: Spec, clock: Clock) -> Outcome:
    store, entry = fresh.store, fresh.loaded.facts.entry
    try:
        instance = fresh.instance()
        run = instance.get_func(store, entry) if isinstance(instance, components.Instance) else None
        if run is None:
            raise Broken(f"the component has no {entry!r}")
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
