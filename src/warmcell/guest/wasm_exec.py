"""`exec` for toolbox guests: runs node, git or python3 in a Store of its own, under what is left of the same limits."""

from __future__ import annotations

import base64
import binascii
import ctypes
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import wasmtime
from wasm_capture import Capture
from wasm_clock import Clock, DeadlineReached
from wasm_component import LoadedComponent
from wasm_component_run import run_component
from wasm_engine import Loaded
from wasm_fresh import Fresh, Spares
from wasm_host import HostCalls, Malformed
from wasm_memory import GuestMemory
from wasm_pages import anonymous_bytes, look_at
from wasm_run import Outcome, Runner, Spec
from wasmtime import _ffi as ffi

MAX_DEPTH = 2
_LEAST_MEMORY = 1 << 20
_OUT_OF_MEMORY = 137
#: What used more than this is freed before the worker says that it is done, so that the supervisor, which measures by
#: how much a worker grows, never takes one run's memory for the starting point of the next.
_LARGE_BYTES = 64 << 20
#: Less than the supervisor's grace, for a run may be waiting by then; what was touched until then is worth knowing too.
_REHEARSAL_SECONDS = 0.1
_REHEARSAL_BYTES = 256 << 20


class FuelGone(Exception):
    """A nested run spent the fuel of all."""


@dataclass
class Command:
    """A checked request."""

    argv: list[str]
    env: dict[str, str]
    stdin: bytes


#: The module that runs a command, or `NoSuchCommand`.
Find = Callable[[str, bool], "Loaded | LoadedComponent"]


class NoSuchCommand(Exception):
    """There is no such command here; the text says why."""


class Exec:
    """Keeps the stack of runs: the outer one's limits are the ceiling of the inner one's."""

    def __init__(self, runner: Runner, clock: Clock, calls: HostCalls, find: Find) -> None:
        self._runner = runner
        self._clock = clock
        self._calls = calls
        self._find = find
        self._specs: list[Spec] = []
        self._spares = Spares()
        self._used: list[Fresh] = []
        self.output_bytes = 0
        self.is_allowed = False

    def run(self, loaded: Loaded | LoadedComponent, spec: Spec) -> Outcome:
        """Runs a module as the new innermost guest."""
        spare = None if self._specs else self._spares.take(loaded, spec.memory_bytes)
        fresh = spare or Fresh(loaded, spec.memory_bytes)
        used_bytes = None
        try:
            outcome = self._run_in(fresh, spec)
            used_bytes = outcome.memory_bytes or None
            return outcome
        finally:
            if self._specs or (used_bytes or anonymous_bytes()) > _LARGE_BYTES:
                fresh.close()
            else:
                self._used.append(fresh)
                if spec.preopens:
                    fresh.let_go()

    def _run_in(self, fresh: Fresh, spec: Spec) -> Outcome:
        self._specs.append(spec)
        self._calls.enter()
        try:
            if fresh.loaded.facts.is_component:
                return run_component(fresh, spec, self._clock)
            return self._runner.run(fresh, spec)
        except FuelGone:
            return Outcome("fuel")
        finally:
            self._calls.leave()
            self._specs.pop()

    def clean_up(self) -> None:
        """Frees what the last run used. For the time after its answer: nobody waits for this."""
        while self._used:
            self._used.pop().close()

    def make_spare(self, loaded: Loaded | LoadedComponent, like: Spec, must_stop: Callable[[], bool]) -> None:
        """The instance for the next run of the same module, if there is one, in case it has the same limits."""
        if not loaded.facts.is_quiet_at_start:
            return
        spare = Fresh(loaded, like.memory_bytes)
        try:
            spare.wasi_for(like.stdout, like.stderr)
            spare.make_ahead(must_stop)
            self._spares.put(spare)
        except (wasmtime.WasmtimeError, wasmtime.Trap, OSError):
            spare.close()  # the run that tries it will say what is wrong

    def forget(self, loaded: Loaded | LoadedComponent) -> None:
        self._spares.drop(loaded)

    def rehearse(self, loaded: Loaded | LoadedComponent, argv: list[str]) -> None:
        """Runs a module of ours for nobody and remembers which pages that touched."""
        fresh = Fresh(loaded, _REHEARSAL_BYTES)
        self._clock.start(_REHEARSAL_SECONDS)
        try:
            memory = fresh.make_ahead()
            self._run_in(fresh, Spec(argv, {"PWD": "/"}, b"", os.devnull, os.devnull, _REHEARSAL_BYTES, None))
            loaded.touched = look_at(memory) if memory is not None else None
        except (wasmtime.WasmtimeError, wasmtime.Trap, OSError, DeadlineReached):
            loaded.touched = None
        finally:
            self._clock.stop()
            fresh.close()

    def answer(self, _raw: bytes, request: dict[str, Any], caller: wasmtime.Caller) -> bytes | None:
        if not self.is_allowed:
            return None
        return json.dumps(self._answer(parse_command(request), caller)).encode()

    def _answer(self, command: Command, caller: wasmtime.Caller) -> dict[str, Any]:
        if len(self._specs) > MAX_DEPTH:
            return _error_object("too_deep", f"commands may be nested {MAX_DEPTH} deep")
        outer = self._specs[-1]
        try:
            loaded = self._find(command.argv[0], outer.fuel is not None)
        except NoSuchCommand as error:
            return _error_object("command_not_found", str(error))
        memory_bytes = outer.memory_bytes - GuestMemory(caller).size
        if memory_bytes < _LEAST_MEMORY:
            return _finished(Outcome("memory"), b"", b"")
        capture = Capture(self.output_bytes)
        spec = _nested_spec(command, outer, memory_bytes, capture, caller)
        outcome = Outcome("failed")
        try:
            outcome = self.run(loaded, spec)
        finally:
            stdout, stderr = capture.finish()
        _settle(outcome, outer, caller)
        return {**_finished(outcome, stdout, stderr), **_truncation(capture)}


def parse_command(request: dict[str, Any]) -> Command:
    """Checks everything: a NUL would silently cut an argument short."""
    request = {
        "env": {},
        "cwd": "/",
        "stdin": "",
        **{key: value for key, value in request.items() if value is not None},
    }
    argv, env, cwd, stdin = request.get("argv"), request["env"], request["cwd"], request["stdin"]
    if not isinstance(argv, list) or not argv or not all(isinstance(item, str) for item in argv):
        raise Malformed("argv must be a list of texts")
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise Malformed("env must map texts to texts")
    if not isinstance(cwd, str) or not isinstance(stdin, str):
        raise Malformed("cwd and stdin must be texts")
    if not all(_is_passable(text) for text in (*argv, cwd, *env.keys(), *env.values())):
        raise Malformed("NUL and lone surrogates are not allowed")
    try:
        return Command(argv, {**env, "PWD": cwd}, base64.b64decode(stdin, validate=True))
    except (binascii.Error, ValueError):
        raise Malformed("stdin must be base64") from None


def _is_passable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _nested_spec(command: Command, outer: Spec, memory_bytes: int, capture: Capture, caller: wasmtime.Caller) -> Spec:
    return replace(
        outer,
        argv=command.argv,
        env=command.env,
        stdin=command.stdin,
        stdout=capture.stdout,
        stderr=capture.stderr,
        memory_bytes=memory_bytes,
        fuel=None if outer.fuel is None else _fuel(caller),
        is_own_module=True,
    )


def _fuel(caller: wasmtime.Caller) -> int:
    left = ctypes.c_uint64(0)
    error = ffi.wasmtime_context_get_fuel(caller._context(), ctypes.byref(left))
    return 0 if error else left.value


def _settle(outcome: Outcome, outer: Spec, caller: wasmtime.Caller) -> None:
    """What ended the inner run for good ends the outer one too; what it spent is spent."""
    if outcome.kind == "timeout":
        raise DeadlineReached
    if outer.fuel is None:
        return
    if outcome.kind == "fuel":
        raise FuelGone
    ffi.wasmtime_context_set_fuel(caller._context(), outcome.fuel_left)


def _finished(outcome: Outcome, stdout: bytes, stderr: bytes) -> dict[str, Any]:
    exit_code = outcome.exit_code
    if outcome.kind == "memory":
        exit_code, stderr = _OUT_OF_MEMORY, stderr + b"memory limit exceeded\n"
    elif outcome.kind in ("trap", "failed"):
        exit_code, stderr = exit_code or 1, stderr + outcome.message.encode() + b"\n"
    return {"exit_code": exit_code, "stdout": _base64(stdout), "stderr": _base64(stderr)}


def _truncation(capture: Capture) -> dict[str, bool]:
    names = ("stdout_truncated", "stderr_truncated")
    return {name: True for name, is_cut in zip(names, capture.is_truncated, strict=True) if is_cut}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _error_object(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}
