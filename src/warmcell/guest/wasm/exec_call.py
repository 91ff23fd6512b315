"""`exec` for toolbox guests: runs node, git or python3 in a Store of its own, under what is left of the same limits."""

from __future__ import annotations

import base64
import binascii
import ctypes
import os
import select
from _thread import allocate_lock, start_new_thread  # without the module around them, which takes longer to load
from collections.abc import Callable
from typing import Any, NamedTuple

import wasmtime
from wasm.deadline import DeadlineReached
from wasm.engine import Loaded
from wasm.frames import write_json
from wasm.host_calls import Malformed
from wasm.memory import GuestMemory
from wasm.open_files import open_files_limit
from wasm.run import Outcome, Spec
from wasm.run_stack import FuelGone, RunStack
from wasm.world import World
from wasmtime import _ffi as ffi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wasm.component import LoadedComponent

MAX_DEPTH = 2
_LEAST_MEMORY = 1 << 20
_OUT_OF_MEMORY = 137
_CANNOT_RUN = 126
_NOT_STARTED = "the command could not be started"
_READ_BYTES = 65536


class Command(NamedTuple):
    """A checked request."""

    argv: list[str]
    env: dict[str, str]
    stdin: bytes


class NoSuchCommand(Exception):
    """There is no such command here; the text says why."""


#: The module that runs a command, or `NoSuchCommand`.
Find = Callable[[str, bool], "Loaded | LoadedComponent"]


class ExecCall:
    """Answers the guests of one worker. `is_allowed` and `output_bytes` belong to the run in progress."""

    def __init__(self, runs: RunStack, find: Find) -> None:
        self._runs = runs
        self._find = find
        self.output_bytes = 0
        self.is_allowed = False

    def answer(self, request: dict[str, Any], caller: wasmtime.Caller) -> bytes | None:
        if not self.is_allowed:
            return None
        return write_json(self._answer(parse_command(request), caller))

    def _answer(self, command: Command, caller: wasmtime.Caller) -> dict[str, Any]:
        if self._runs.depth > MAX_DEPTH:
            return _error_object("too_deep", f"commands may be nested {MAX_DEPTH} deep")
        outer = self._runs.innermost
        try:
            with open_files_limit.raised():
                loaded = self._find(command.argv[0], outer.fuel is not None)
                capture = Capture(self.output_bytes)
        except NoSuchCommand as error:
            return _error_object("command_not_found", str(error))
        except OSError:
            return _error_object("failed", _NOT_STARTED)
        return self._run(loaded, command, capture, caller)

    def _run(
        self, loaded: Loaded | LoadedComponent, command: Command, capture: Capture, caller: wasmtime.Caller
    ) -> dict[str, Any]:
        outer = self._runs.innermost
        memory_bytes = outer.memory_bytes - GuestMemory(caller).size
        outcome = Outcome("memory")
        try:
            if memory_bytes >= _LEAST_MEMORY:
                outcome = Outcome("failed")
                outcome = self._runs.run(loaded, _nested_spec(command, outer, memory_bytes, capture, caller))
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
    return outer._replace(
        argv=command.argv,
        env=command.env,
        stdin=command.stdin,
        world=World(capture.stdout, capture.stderr, outer.world.preopens),
        memory_bytes=memory_bytes,
        fuel=None if outer.fuel is None else _fuel(caller),
        is_own_module=True,
        is_nested=True,
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
    elif outcome.kind == "failed":
        # What went wrong on our side has words of the host in it, which are not for the guest.
        exit_code, stderr = _CANNOT_RUN, stderr + _NOT_STARTED.encode() + b"\n"
    elif outcome.kind == "trap":
        exit_code, stderr = exit_code or 1, stderr + outcome.message.encode() + b"\n"
    return {"exit_code": exit_code, "stdout": _base64(stdout), "stderr": _base64(stderr)}


def _truncation(capture: Capture) -> dict[str, bool]:
    names = ("stdout_truncated", "stderr_truncated")
    return {name: True for name, is_cut in zip(names, capture.is_truncated, strict=True) if is_cut}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _error_object(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


class Capture:
    """Takes in the output of a nested run, up to a limit, while the run is writing it, so that it never stalls.

    `stdout` and `stderr` are paths for the guest; `finish` returns what was written.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = (bytearray(), bytearray())
        self.is_truncated = [False, False]
        pipes = (os.pipe(), os.pipe())
        self._readers = [reader for reader, _ in pipes]
        self._writers = [writer for _, writer in pipes]
        self.stdout, self.stderr = (f"/proc/self/fd/{writer}" for writer in self._writers)
        self._drained = allocate_lock()
        self._drained.acquire()
        start_new_thread(self._drain, ())

    def finish(self) -> tuple[bytes, bytes]:
        for writer in self._writers:
            os.close(writer)
        self._drained.acquire()
        for reader in self._readers:
            os.close(reader)
        return bytes(self._kept[0]), bytes(self._kept[1])

    def _drain(self) -> None:
        try:
            self._take_all()
        finally:
            self._drained.release()

    def _take_all(self) -> None:
        poller = select.poll()
        open_streams = {reader: at for at, reader in enumerate(self._readers)}
        for reader in open_streams:
            poller.register(reader, select.POLLIN)
        while open_streams:
            for reader, _ in poller.poll():
                data = os.read(reader, _READ_BYTES)
                if not data:
                    poller.unregister(reader)
                    del open_streams[reader]
                    continue
                self._keep(open_streams[reader], data)

    def _keep(self, at: int, data: bytes) -> None:
        room = self._most - len(self._kept[at])
        self._kept[at].extend(data[:room])
        self.is_truncated[at] = self.is_truncated[at] or len(data) > room
