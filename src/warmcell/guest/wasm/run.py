"""One run in a Store of its own, and the verdict on how it ended: of a module, or of a component of ours.

A component exports `run(argv, env, cwd, seed) -> s32`: the snapshot inside it froze what WASI said when it was made. It
sleeps in short pieces, between which the epoch ends it.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import NamedTuple

import wasmtime
from wasm.binary import MEMORY_NAME, REFUSED_NAME
from wasm.deadline import Deadline, DeadlineReached
from wasm.direct_calls import give_wasi, give_words, memory_bytes, set_epoch_deadline
from wasm.engine import Facts
from wasm.instances import PreparedInstance
from wasm.open_files import open_files_limit
from wasm.pages import anonymous_bytes
from wasm.wasi_calls import GuestExit, Wasi
from wasm.world import Broken, World, give_stdin
from wasmtime import _ffi as ffi

PAGE_BYTES = 65536
_MAX_MESSAGE = 4000
_MAX_TRACE_LINES = 20
#: How wasmtime says at instantiation that a module asks for more than its Store may hold.
_OVER_LIMITS = ("exceeds memory limits", "exceeds table limits", "resource limit exceeded")
#: What Go's runtime exits with when the host refuses it memory.
_GO_FATAL = 2
_OUT_OF_HOST_MEMORY = ("mmap", "Cannot allocate memory", "os error 12", "out of memory")
_NO_MEMORY = "this process may not have the address space that WebAssembly needs (ulimit -v), or the host has no memory"
_NOT_INSTANTIATED = "the runtime could not make an instance of the module"
_SEED_BYTES = 32
_FEW_PREOPENS = 16
#: Python turns refused growth into MemoryError long after the fact; this much of the limit in use and a failure at the
#: end is taken for a failure for lack of memory.
_NEARLY_ALL = 0.5


class Spec(NamedTuple):
    """What one run gets."""

    argv: list[str]
    env: dict[str, str]
    stdin: bytes
    world: World
    memory_bytes: int
    fuel: int | None
    #: For modules of our own: any failure after refused growth is a failure for lack of memory.
    is_own_module: bool = False
    #: Started by a guest, which may have opened all that it may.
    is_nested: bool = False


class Outcome:
    """How it ended: `exit`, `trap`, `timeout`, `fuel`, `memory`, or `failed` when it could not be carried out."""

    def __init__(self, kind: str, exit_code: int = 0, message: str = "") -> None:
        self.kind = kind
        self.exit_code = exit_code
        self.message = message
        self.memory_bytes = 0
        self.fuel_left = 0


class Runner:
    """Runs modules one after the other, nested ones inside the host calls of outer ones."""

    def __init__(self, deadline: Deadline, wasi: Wasi) -> None:
        self._deadline = deadline
        self._wasi = wasi

    def run(self, prepared: PreparedInstance, spec: Spec) -> Outcome:
        outer_started, self._wasi.started = self._wasi.started, time.monotonic()
        try:
            if prepared.loaded.facts.is_component:
                return self._run_component(prepared, spec)
            return self._run_module(prepared, spec)
        except Broken as error:
            return Outcome("failed", message=str(error))
        except OSError as error:
            return Outcome("failed", message=error.strerror or "a call of the system failed")
        finally:
            self._wasi.started = outer_started

    def _run_module(self, prepared: PreparedInstance, spec: Spec) -> Outcome:
        get_ready(prepared, spec)
        facts, call = prepared.loaded.facts, None
        try:
            call = prepared.entry_call()
            outcome = Outcome("exit", min(call(), 255))
        except GuestExit as leaving:
            outcome = Outcome("exit", min(leaving.code, 255))
        except DeadlineReached:
            outcome = Outcome("timeout")
        except wasmtime.Trap as trap:
            outcome = self._judge_trap(trap)
        except wasmtime.WasmtimeError as error:
            outcome = _judge_error(str(error), is_started=call is not None)
        if call is not None and facts.has_visible_memory:
            _look_at_memory(prepared, facts, spec, outcome)
        if spec.fuel is not None:
            outcome.fuel_left = prepared.store.get_fuel()
        return outcome

    def _judge_trap(self, trap: wasmtime.Trap) -> Outcome:
        code = trap.trap_code
        if code is wasmtime.TrapCode.INTERRUPT and self._deadline.has_passed():
            return Outcome("timeout")
        if code is wasmtime.TrapCode.OUT_OF_FUEL:
            return Outcome("fuel")
        return Outcome("trap", 1, trap_text(trap.message))

    def _run_component(self, prepared: PreparedInstance, spec: Spec) -> Outcome:
        before = anonymous_bytes() - prepared.own_bytes
        get_ready(prepared, spec)
        outcome = self._call_component(prepared, spec)
        outcome.memory_bytes = max(0, anonymous_bytes() - before)
        outcome.fuel_left = prepared.store.get_fuel() if spec.fuel is not None else 0
        has_failed = outcome.kind == "trap" or (outcome.kind == "exit" and outcome.exit_code != 0)
        if has_failed and outcome.memory_bytes > _NEARLY_ALL * spec.memory_bytes:
            outcome.kind = "memory"
        return outcome

    def _call_component(self, prepared: PreparedInstance, spec: Spec) -> Outcome:
        store, entry, run = prepared.store, prepared.loaded.facts.entry, None
        try:
            instance = prepared.instance()
            run = instance.get_func(store, entry) if not isinstance(instance, wasmtime.Instance) else None
            if run is None:
                raise Broken(f"the component has no {entry!r}")
            status = run(store, spec.argv, list(spec.env.items()), spec.env.get("PWD", "/"), os.urandom(_SEED_BYTES))
            return Outcome("exit", int(status) & 0xFF)
        except DeadlineReached:
            return Outcome("timeout")
        except wasmtime.ExitTrap as leaving:
            return Outcome("exit", leaving.code & 0xFF)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            return self._judge_component(str(error), is_started=run is not None)

    def _judge_component(self, message: str, is_started: bool) -> Outcome:
        """Calls of components raise plain errors; what happened is only in their text."""
        if "wasm trap: interrupt" in message and self._deadline.has_passed():
            return Outcome("timeout")
        if "all fuel consumed" in message:
            return Outcome("fuel")
        return _judge_error(message, is_started or "wasm trap" in message)


def trap_text(message: str) -> str:
    """The cause first, then the top of the backtrace: an endless recursion has thousands of frames."""
    trace, found, cause = message.partition("Caused by:")
    if not found:
        return message.strip()[:_MAX_MESSAGE]
    frames = trace.strip().splitlines()[:_MAX_TRACE_LINES]
    return "\n".join([" ".join(cause.split()), *frames])[:_MAX_MESSAGE]


def get_ready(prepared: PreparedInstance, spec: Spec) -> None:
    """Everything that belongs to the run and not to its instance, which may have been made long before it."""
    set_epoch_deadline(prepared.context, 1)
    if spec.fuel is not None:
        prepared.store.set_fuel(spec.fuel)
    try:
        if spec.is_nested or len(spec.world.preopens) > _FEW_PREOPENS:
            with open_files_limit.raised():
                _give_world(prepared, spec)
        else:  # what the limit leaves to the worker is enough
            _give_world(prepared, spec)
    except wasmtime.WasmtimeError:
        raise Broken("the run's streams and directories could not be opened") from None


def _give_world(prepared: PreparedInstance, spec: Spec) -> None:
    wasi = prepared.wasi_for(spec.world)
    give_words(wasi, spec.argv, spec.env)
    if spec.stdin:
        give_stdin(wasi, spec.stdin)
    give_wasi(prepared.context, wasi)


def _judge_error(message: str, is_started: bool) -> Outcome:
    """What is neither a trap nor over a limit before the first instruction is the host's failure, not the guest's."""
    if any(words in message for words in _OVER_LIMITS):
        return Outcome("memory", 1)
    if is_started:
        return Outcome("trap", 1, trap_text(message))
    raise Broken(_NO_MEMORY if any(words in message for words in _OUT_OF_HOST_MEMORY) else _NOT_INSTANTIATED)


def _look_at_memory(prepared: PreparedInstance, facts: Facts, spec: Spec, outcome: Outcome) -> None:
    memory = prepared.exported(MEMORY_NAME)
    if memory is not None:
        outcome.memory_bytes = memory_bytes(prepared.context, ctypes.addressof(memory.of.memory))
    if outcome.kind not in ("trap", "exit") or not facts.counts_refusals:
        return
    if _died_of(outcome, facts, spec) and _refused_bytes(prepared) > spec.memory_bytes:
        outcome.kind = "memory"


def _died_of(outcome: Outcome, facts: Facts, spec: Spec) -> bool:
    """Whether the end looks like that of a guest that was refused memory; an exit of its own choice is not one."""
    if outcome.kind == "trap":
        return True
    return outcome.exit_code != 0 if spec.is_own_module else facts.is_go and outcome.exit_code == _GO_FATAL


def _refused_bytes(prepared: PreparedInstance) -> int:
    counter = prepared.exported(REFUSED_NAME)
    if counter is None:
        return 0
    value = ffi.wasmtime_val_t()
    ffi.wasmtime_global_get(prepared.store._context(), ctypes.byref(counter.of.global_), ctypes.byref(value))
    return int(value.of.i64) * PAGE_BYTES
