"""Runs of modules and components, each in its own Store, and the report of how it ended.

A component exports `run(argv, env, cwd, seed) -> s32`: the snapshot inside it froze the WASI state of its build, so all
of these are parameters. It sleeps in short steps, so that the epoch can interrupt it between them.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import wasmtime
from wasm.binary import REFUSED_NAME
from wasm.deadline import Deadline, DeadlineReached
from wasm.engine import LoadedModule, ModuleFacts
from wasm.instances import PreparedInstance, SpareInstances, memory_bytes, set_arguments, set_epoch_deadline, set_wasi
from wasm.pages import anonymous_bytes, read_touched_pages
from wasm.protocol import ExitReport
from wasm.wasi import GuestExit, SetupFailed, WasiCalls, WasiSetup, open_files_limit, set_stdin
from wasmtime import _ffi as ffi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wasm.component import LoadedComponent

    from wasm.host_calls import HostCalls

PAGE_BYTES = 65536
_MAX_MESSAGE = 4000
_MAX_TRACE_LINES = 20
#: wasmtime's messages for a module that needs more than its Store allows.
_OVER_LIMITS = ("exceeds memory limits", "exceeds table limits", "resource limit exceeded")
#: The exit code of Go's runtime when the host refuses it memory.
_GO_FATAL = 2
_OUT_OF_HOST_MEMORY = ("mmap", "Cannot allocate memory", "os error 12", "out of memory")
_NO_MEMORY = "not enough address space for WebAssembly (ulimit -v), or the host is out of memory"
_NOT_INSTANTIATED = "the runtime could not instantiate the module"
_SEED_BYTES = 32
_FEW_DIRECTORIES = 16
#: Python turns refused growth into a MemoryError much later. A failed run that used this share of its limit counts as
#: out of memory.
_NEARLY_ALL = 0.5
#: An instance that used more is freed before the worker reports the exit. The supervisor measures how much a worker
#: grows, and must not take one run's memory for the starting point of the next.
_LARGE_BYTES = 64 << 20
#: Less than the supervisor's grace, as a run may be waiting. What was touched until then is still worth knowing.
_REHEARSAL_SECONDS = 0.1
_REHEARSAL_BYTES = 256 << 20


class Invocation(NamedTuple):
    """One call of a module, with everything that it is given."""

    argv: list[str]
    env: dict[str, str]
    stdin: bytes
    setup: WasiSetup
    memory_bytes: int
    fuel: int | None
    #: For our own modules: any failure after refused growth means out of memory.
    is_own_module: bool = False
    #: Started by a guest, which may have opened as many files as it may.
    is_nested: bool = False


class Runner:
    """Runs one module at a time; a nested run happens inside a host call of the outer one."""

    def __init__(self, deadline: Deadline, wasi: WasiCalls) -> None:
        self._deadline, self._wasi = deadline, wasi

    def run(self, prepared: PreparedInstance, invocation: Invocation) -> ExitReport:
        outer_start, self._wasi.start = self._wasi.start, time.monotonic()
        try:
            if prepared.loaded.facts.is_component:
                return self._run_component(prepared, invocation)
            return self._run_module(prepared, invocation)
        except SetupFailed as error:
            return ExitReport("failed", message=str(error))
        except OSError as error:
            return ExitReport("failed", message=error.strerror or "a system call failed")
        finally:
            self._wasi.start = outer_start

    def _run_module(self, prepared: PreparedInstance, invocation: Invocation) -> ExitReport:
        configure(prepared, invocation)
        call = None
        try:
            call = prepared.entry_call()
            report = ExitReport("exit", min(call(), 255))
        except GuestExit as leaving:
            report = ExitReport("exit", min(leaving.code, 255))
        except DeadlineReached:
            report = ExitReport("timeout")
        except wasmtime.Trap as trap:
            report = self._report_trap(trap)
        except wasmtime.WasmtimeError as error:
            report = _report_error(str(error), is_started=call is not None)
        if call is not None and prepared.loaded.facts.has_visible_memory:
            return _add_memory(report, prepared, invocation)
        return report

    def _report_trap(self, trap: wasmtime.Trap) -> ExitReport:
        code = trap.trap_code
        if code is wasmtime.TrapCode.INTERRUPT and self._deadline.has_passed():
            return ExitReport("timeout")
        if code is wasmtime.TrapCode.OUT_OF_FUEL:
            return ExitReport("fuel")
        return ExitReport("trap", 1, trap_text(trap.message))

    def _run_component(self, prepared: PreparedInstance, invocation: Invocation) -> ExitReport:
        before = anonymous_bytes() - prepared.own_bytes
        configure(prepared, invocation)
        report = self._call_component(prepared, invocation)
        used = max(0, anonymous_bytes() - before)
        has_failed = report.kind == "trap" or (report.kind == "exit" and report.exit_code != 0)
        is_out_of_memory = has_failed and used > _NEARLY_ALL * invocation.memory_bytes
        return report._replace(memory_bytes=used, kind="memory" if is_out_of_memory else report.kind)

    def _call_component(self, prepared: PreparedInstance, invocation: Invocation) -> ExitReport:
        store, entry, run = prepared.store, prepared.loaded.facts.entry, None
        argv, env = invocation.argv, invocation.env
        try:
            instance = prepared.instance()
            run = instance.get_func(store, entry) if not isinstance(instance, wasmtime.Instance) else None
            if run is None:
                raise SetupFailed(f"the component does not export {entry!r}")
            status = run(store, argv, list(env.items()), env.get("PWD", "/"), os.urandom(_SEED_BYTES))
            return ExitReport("exit", int(status) & 0xFF)
        except DeadlineReached:
            return ExitReport("timeout")
        except wasmtime.ExitTrap as leaving:
            return ExitReport("exit", leaving.code & 0xFF)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            return self._report_component_error(str(error), is_started=run is not None)

    def _report_component_error(self, message: str, is_started: bool) -> ExitReport:
        """Component calls raise plain errors: only the text tells them apart."""
        if "wasm trap: interrupt" in message and self._deadline.has_passed():
            return ExitReport("timeout")
        if "all fuel consumed" in message:
            return ExitReport("fuel")
        return _report_error(message, is_started or "wasm trap" in message)


def trap_text(message: str) -> str:
    """The cause first, then the top of the backtrace: an endless recursion has thousands of frames."""
    trace, found, cause = message.partition("Caused by:")
    if not found:
        return message.strip()[:_MAX_MESSAGE]
    frames = trace.strip().splitlines()[:_MAX_TRACE_LINES]
    return "\n".join([" ".join(cause.split()), *frames])[:_MAX_MESSAGE]


def configure(prepared: PreparedInstance, invocation: Invocation) -> None:
    """Sets everything that belongs to the run and not to its instance, which may be much older."""
    set_epoch_deadline(prepared.context, 1)
    if invocation.fuel is not None:
        prepared.store.set_fuel(invocation.fuel)
    try:
        if invocation.is_nested or len(invocation.setup.directories) > _FEW_DIRECTORIES:
            with open_files_limit.headroom():
                _configure_wasi(prepared, invocation)
        else:  # the worker's own share of the limit is enough
            _configure_wasi(prepared, invocation)
    except wasmtime.WasmtimeError:
        raise SetupFailed("could not open the run's streams and directories") from None


def _configure_wasi(prepared: PreparedInstance, invocation: Invocation) -> None:
    wasi = prepared.open_wasi(invocation.setup)
    set_arguments(wasi, invocation.argv, invocation.env)
    if invocation.stdin:
        set_stdin(wasi, invocation.stdin)
    set_wasi(prepared.context, wasi)


def _report_error(message: str, is_started: bool) -> ExitReport:
    """Before the first instruction, an error that is neither a trap nor a limit is the host's failure."""
    if any(words in message for words in _OVER_LIMITS):
        return ExitReport("memory", 1)
    if is_started:
        return ExitReport("trap", 1, trap_text(message))
    raise SetupFailed(_NO_MEMORY if any(words in message for words in _OUT_OF_HOST_MEMORY) else _NOT_INSTANTIATED)


def _add_memory(report: ExitReport, prepared: PreparedInstance, invocation: Invocation) -> ExitReport:
    """The report with the memory that the run used, as kind `memory` if it died for lack of it."""
    facts, kind = prepared.loaded.facts, report.kind
    memory = prepared.memory_export()
    used = 0 if memory is None else memory_bytes(prepared.context, ctypes.addressof(memory.of.memory))
    if kind in ("trap", "exit") and facts.counts_refusals and _may_lack_memory(report, facts, invocation):
        kind = "memory" if _refusal_bytes(prepared) > invocation.memory_bytes else kind
    return ExitReport(kind, report.exit_code, report.message, used)


def _may_lack_memory(report: ExitReport, facts: ModuleFacts, invocation: Invocation) -> bool:
    """Whether a guest that was refused memory ends like this; a guest that chose its exit code does not."""
    if report.kind == "trap":
        return True
    return report.exit_code != 0 if invocation.is_own_module else facts.is_go and report.exit_code == _GO_FATAL


def _refusal_bytes(prepared: PreparedInstance) -> int:
    """The size that the last refused `memory.grow` asked for; 0 if none was refused."""
    counter = prepared.export(REFUSED_NAME)
    if counter is None:
        return 0
    value = ffi.wasmtime_val_t()
    ffi.wasmtime_global_get(prepared.store._context(), ctypes.byref(counter.of.global_), ctypes.byref(value))
    return int(value.of.i64) * PAGE_BYTES


class FuelGone(Exception):
    """A nested run used up the fuel of the outermost one."""


class RunStack:
    """The innermost run executes; the others wait in a host call."""

    def __init__(self, runner: Runner, deadline: Deadline, calls: HostCalls) -> None:
        self._runner, self._deadline, self._calls = runner, deadline, calls
        self._invocations: list[Invocation] = []
        self._spares = SpareInstances()
        self._used: list[PreparedInstance] = []
        #: Of the run that ended last, if it had any.
        self.fuel_left = 0

    @property
    def depth(self) -> int:
        return len(self._invocations)

    @property
    def innermost(self) -> Invocation:
        return self._invocations[-1]

    def run(self, loaded: LoadedModule | LoadedComponent, invocation: Invocation) -> ExitReport:
        """Runs a module as the new innermost guest."""
        is_nested = bool(self._invocations)
        spare = None if is_nested else self._spares.take(loaded, invocation.memory_bytes)
        prepared = spare or PreparedInstance(loaded, invocation.memory_bytes)
        used_bytes = None
        try:
            report = self._run_in(prepared, invocation)
            used_bytes = report.memory_bytes or None
            return report
        finally:
            if is_nested or (used_bytes or anonymous_bytes()) > _LARGE_BYTES:
                prepared.close()
            else:
                self._used.append(prepared)
                if invocation.setup.directories:
                    prepared.close_files()

    def _run_in(self, prepared: PreparedInstance, invocation: Invocation) -> ExitReport:
        self._invocations.append(invocation)
        self._calls.enter()
        try:
            return self._runner.run(prepared, invocation)
        except FuelGone:
            return ExitReport("fuel")
        finally:
            self._calls.leave()
            self._invocations.pop()
            if invocation.fuel is not None:
                self.fuel_left = prepared.store.get_fuel()

    def clean_up(self) -> None:
        """Frees the instances of past runs. Call it after the exit report was sent."""
        while self._used:
            self._used.pop().close()

    def make_spare(
        self, loaded: LoadedModule | LoadedComponent, memory_bytes: int, setup: WasiSetup, must_stop: Callable[[], bool]
    ) -> None:
        """Makes an instance in advance, for a next run of the same module under the same limits."""
        if not loaded.facts.is_quiet_at_start:
            return
        spare = PreparedInstance(loaded, memory_bytes)
        try:
            spare.open_wasi(setup)
            spare.instantiate_ahead(must_stop)
            self._spares.put(spare)
        except (wasmtime.WasmtimeError, wasmtime.Trap, OSError, SetupFailed):
            spare.close()  # the run itself will meet and report the same error

    def forget(self, loaded: LoadedModule | LoadedComponent) -> None:
        self._spares.drop(loaded)

    def rehearse(self, loaded: LoadedModule | LoadedComponent, argv: list[str]) -> None:
        """Runs one of our own modules without a caller, to record which pages a run touches."""
        prepared = PreparedInstance(loaded, _REHEARSAL_BYTES)
        self._deadline.start(_REHEARSAL_SECONDS)
        try:
            memory = prepared.instantiate_ahead()
            setup = WasiSetup(os.devnull, os.devnull)
            self._run_in(prepared, Invocation(argv, {"PWD": "/"}, b"", setup, _REHEARSAL_BYTES, None))
            loaded.touched = read_touched_pages(memory) if memory is not None else None
        except (wasmtime.WasmtimeError, wasmtime.Trap, OSError, SetupFailed, DeadlineReached):
            loaded.touched = None
        finally:
            self._deadline.stop()
            prepared.close()
