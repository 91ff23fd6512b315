"""The runs in progress, an inner one inside a host call of an outer one, and the instances that they happen in."""

from __future__ import annotations

import os
from collections.abc import Callable

import wasmtime
from wasm.deadline import Deadline, DeadlineReached
from wasm.engine import Loaded
from wasm.host_calls import HostCalls
from wasm.instances import PreparedInstance, SpareInstances
from wasm.pages import anonymous_bytes, look_at
from wasm.run import Outcome, Runner, Spec
from wasm.world import Broken, World

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wasm.component import LoadedComponent

#: What used more than this is freed before the worker says that it is done, so that the supervisor, which measures by
#: how much a worker grows, never takes one run's memory for the starting point of the next.
_LARGE_BYTES = 64 << 20
#: Less than the supervisor's grace, for a run may be waiting by then; what was touched until then is worth knowing too.
_REHEARSAL_SECONDS = 0.1
_REHEARSAL_BYTES = 256 << 20


class FuelGone(Exception):
    """A nested run spent the fuel of all."""


class RunStack:
    """The innermost run is the only one that is executing; the others wait in a host call."""

    def __init__(self, runner: Runner, deadline: Deadline, calls: HostCalls) -> None:
        self._runner = runner
        self._deadline = deadline
        self._calls = calls
        self._specs: list[Spec] = []
        self._spares = SpareInstances()
        self._used: list[PreparedInstance] = []

    @property
    def depth(self) -> int:
        return len(self._specs)

    @property
    def innermost(self) -> Spec:
        return self._specs[-1]

    def run(self, loaded: Loaded | LoadedComponent, spec: Spec) -> Outcome:
        """Runs a module as the new innermost guest."""
        spare = None if self._specs else self._spares.take(loaded, spec.memory_bytes)
        prepared = spare or PreparedInstance(loaded, spec.memory_bytes)
        used_bytes = None
        try:
            outcome = self._run_in(prepared, spec)
            used_bytes = outcome.memory_bytes or None
            return outcome
        finally:
            if self._specs or (used_bytes or anonymous_bytes()) > _LARGE_BYTES:
                prepared.close()
            else:
                self._used.append(prepared)
                if spec.world.preopens:
                    prepared.let_go()

    def _run_in(self, prepared: PreparedInstance, spec: Spec) -> Outcome:
        self._specs.append(spec)
        self._calls.enter()
        try:
            return self._runner.run(prepared, spec)
        except FuelGone:
            return Outcome("fuel")
        finally:
            self._calls.leave()
            self._specs.pop()

    def clean_up(self) -> None:
        """Frees what the last run used. For the time after its answer: nobody waits for this."""
        while self._used:
            self._used.pop().close()

    def make_spare(
        self,
        loaded: Loaded | LoadedComponent,
        memory_bytes: int,
        world: World,
        must_stop: Callable[[], bool],
    ) -> None:
        """The instance for the next run of the same module, if there is one, in case it has the same limits."""
        if not loaded.facts.is_quiet_at_start:
            return
        spare = PreparedInstance(loaded, memory_bytes)
        try:
            spare.wasi_for(world)
            spare.make_ahead(must_stop)
            self._spares.put(spare)
        except (wasmtime.WasmtimeError, wasmtime.Trap, OSError, Broken):
            spare.close()  # the run that tries it will say what is wrong

    def forget(self, loaded: Loaded | LoadedComponent) -> None:
        self._spares.drop(loaded)

    def rehearse(self, loaded: Loaded | LoadedComponent, argv: list[str]) -> None:
        """Runs a module of ours for nobody and remembers which pages that touched."""
        prepared = PreparedInstance(loaded, _REHEARSAL_BYTES)
        self._deadline.start(_REHEARSAL_SECONDS)
        try:
            memory = prepared.make_ahead()
            spec = Spec(argv, {"PWD": "/"}, b"", World(os.devnull, os.devnull), _REHEARSAL_BYTES, None)
            self._run_in(prepared, spec)
            loaded.touched = look_at(memory) if memory is not None else None
        except (wasmtime.WasmtimeError, wasmtime.Trap, OSError, Broken, DeadlineReached):
            loaded.touched = None
        finally:
            self._deadline.stop()
            prepared.close()
