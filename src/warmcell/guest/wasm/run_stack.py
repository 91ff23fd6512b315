"""The runs in progress, each nested in a host call of the one before, and their instances."""

from __future__ import annotations

import os
from collections.abc import Callable

import wasmtime
from wasm.deadline import Deadline, DeadlineReached
from wasm.engine import LoadedModule
from wasm.instances import PreparedInstance, SpareInstances
from wasm.pages import anonymous_bytes, read_touched_pages
from wasm.protocol import ExitReport
from wasm.run import Invocation, Runner
from wasm.wasi_setup import SetupFailed, WasiSetup

from wasm.host_calls import HostCalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wasm.component import LoadedComponent

#: An instance that used more is freed before the worker reports the exit. The supervisor measures how much a worker
#: grows, and must not take one run's memory for the starting point of the next.
_LARGE_BYTES = 64 << 20
#: Less than the supervisor's grace, as a run may be waiting. What was touched until then is still worth knowing.
_REHEARSAL_SECONDS = 0.1
_REHEARSAL_BYTES = 256 << 20


class FuelGone(Exception):
    """A nested run used up the fuel of the outermost one."""


class RunStack:
    """The innermost run executes; the others wait in a host call."""

    def __init__(self, runner: Runner, deadline: Deadline, calls: HostCalls) -> None:
        self._runner = runner
        self._deadline = deadline
        self._calls = calls
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
        self,
        loaded: LoadedModule | LoadedComponent,
        memory_bytes: int,
        setup: WasiSetup,
        must_stop: Callable[[], bool],
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
