"""The module `sandbox` that toolbox guests import: `fetch` and `exec`, three functions each.

A request is JSON at (pointer, length). The result is 0 (there is a response), -1 (malformed) or -2 (not allowed; the
response says how to allow it). The guest then asks for the response's length and reads it. No argument of a guest can
raise an exception.
"""

from __future__ import annotations

import base64
import binascii
import ctypes
import os
import select
from _thread import allocate_lock, start_new_thread  # `threading` takes longer to load
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import wasmtime
from wasm.deadline import DeadlineReached
from wasm.engine import HOST, HostFunction, HostFunctions, LoadedModule
from wasm.protocol import ExitReport, read_json, write_json
from wasm.run import FuelGone, Invocation, RunStack
from wasm.wasi import GuestMemory, WasiSetup, open_files_limit
from wasmtime import _ffi as ffi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from wasm.component import LoadedComponent

OK, MALFORMED, NOT_ALLOWED = 0, -1, -2
MAX_REQUEST_BYTES = 16 << 20
_HOW_TO_ENABLE = {
    "fetch": "networking is disabled for this sandbox; pass fetch_policy=FetchPolicy(allowed_domains=[...])",
    "exec": "this run may not start commands",
}
#: Takes the request and the calling guest. None means not allowed.
Handler = Callable[[dict[str, Any], wasmtime.Caller], bytes | None]
#: The supervisor accepts at most 64 KiB of JSON; the body is sent as a blob.
_MOST_HEAD_BYTES = 48 << 10
_FIELDS = {"url": str, "method": str, "headers": dict, "timeout": (int, float), "follow_redirects": bool, "body": str}
MAX_DEPTH = 2
_LEAST_MEMORY = 1 << 20
_OUT_OF_MEMORY = 137
_CANNOT_RUN = 126
_NOT_STARTED = "the command could not be started"
_CUT = b"output limit exceeded: the rest was left out\n"
_READ_BYTES = 65536


class MalformedRequest(Exception):
    """The request is JSON, but its fields are wrong."""


class HostCalls:
    """One per worker. A response belongs to the innermost run, the only one that can make calls."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self._responses: list[dict[str, bytes]] = [{}]

    def enter(self) -> None:
        self._responses.append({})

    def leave(self) -> None:
        self._responses.pop()

    def functions(self) -> HostFunctions:
        found: HostFunctions = {}
        for what in _HOW_TO_ENABLE:
            found[HOST, f"__sandbox_{what}"] = HostFunction(2, 1, partial(self._request, what))
            found[HOST, f"__sandbox_{what}_response_len"] = HostFunction(0, 1, partial(self._length, what))
            found[HOST, f"__sandbox_{what}_response_read"] = HostFunction(2, 1, partial(self._read, what))
        return found

    def _request(self, what: str, caller: wasmtime.Caller, pointer: int, length: int) -> int:
        self._responses[-1].pop(what, None)
        request = _read_request(caller, pointer, length)
        if request is None:
            return MALFORMED
        try:
            response = self.handlers[what](request, caller)
        except MalformedRequest:
            return MALFORMED
        refusal = _error_object(f"{what}_disabled", _HOW_TO_ENABLE[what])
        self._responses[-1][what] = write_json(refusal) if response is None else response
        return NOT_ALLOWED if response is None else OK

    def _length(self, what: str, _caller: wasmtime.Caller) -> int:
        response = self._responses[-1].get(what)
        return MALFORMED if response is None else len(response)

    def _read(self, what: str, caller: wasmtime.Caller, pointer: int, length: int) -> int:
        response = self._responses[-1].get(what)
        if response is None or length < 0:
            return MALFORMED
        piece = response[:length]
        return len(piece) if GuestMemory(caller).write(pointer, piece) else MALFORMED


def _read_request(caller: wasmtime.Caller, pointer: int, length: int) -> dict[str, Any] | None:
    if pointer < 0 or not 0 < length <= MAX_REQUEST_BYTES:
        return None
    raw = GuestMemory(caller).read(pointer, length)
    try:
        request = read_json(raw) if raw is not None else None
    except (ValueError, RecursionError):
        return None
    return request if isinstance(request, dict) else None


def parse_fetch(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The validated fields of a fetch, and its body. Raises `MalformedRequest`.

    Parsed here, so that the supervisor never parses a guest's JSON.
    """
    fields = {name: value for name, value in request.items() if value is not None}
    for name, value in fields.items():
        if name not in _FIELDS or not isinstance(value, _FIELDS[name]):
            raise MalformedRequest(f"{name} is unknown or of the wrong type")
        if isinstance(value, bool) and name != "follow_redirects":
            raise MalformedRequest(f"{name} is of the wrong type")
    if "url" not in fields:
        raise MalformedRequest("url is missing")
    if not all(isinstance(value, str) for value in fields.get("headers", {}).values()):
        raise MalformedRequest("header values must be strings")
    body = fields.pop("body", None)
    if len(write_json(fields)) > _MOST_HEAD_BYTES:
        raise MalformedRequest("url and headers are too long")
    return ({**fields, "has_body": True}, _decode("body", body)) if body is not None else (fields, b"")


def _decode(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedRequest(f"{name} must be base64") from None


class CommandRequest(NamedTuple):
    """A validated request."""

    argv: list[str]
    env: dict[str, str]
    stdin: bytes


class CommandUnavailable(Exception):
    """The command does not exist or cannot be loaded; the text says why."""


#: Returns the module of a command, or raises `CommandUnavailable`. Arguments: its name, whether it needs fuel.
FindCommand = Callable[[str, bool], "LoadedModule | LoadedComponent"]


class ExecCall:
    """Handles the `exec` calls of one worker. `is_allowed` and `output_bytes` belong to the run in progress."""

    def __init__(self, runs: RunStack, find: FindCommand) -> None:
        self._runs, self._find = runs, find
        self.output_bytes = 0
        self.is_allowed = False

    def handle(self, request: dict[str, Any], caller: wasmtime.Caller) -> bytes | None:
        if not self.is_allowed:
            return None
        return write_json(self._execute(parse_command(request), caller))

    def _execute(self, command: CommandRequest, caller: wasmtime.Caller) -> dict[str, Any]:
        if self._runs.depth > MAX_DEPTH:
            return _error_object("too_deep", f"commands may be nested {MAX_DEPTH} deep")
        outer = self._runs.innermost
        try:
            with open_files_limit.headroom():
                loaded = self._find(command.argv[0], outer.fuel is not None)
                # One byte more than the run keeps: a guest that passes it on sees its own output marked as truncated.
                output = NestedOutput(self.output_bytes + 1)
        except CommandUnavailable as error:
            return _error_object("command_not_found", str(error))
        except OSError:
            return _error_object("failed", _NOT_STARTED)
        memory_bytes = outer.memory_bytes - GuestMemory(caller).size
        report = ExitReport("memory")
        try:
            if memory_bytes >= _LEAST_MEMORY:
                report = ExitReport("failed")
                report = self._runs.run(loaded, _invocation(command, outer, memory_bytes, output, caller))
        finally:
            stdout, stderr = output.finish()
        self._settle(report, outer, caller)
        if any(output.is_truncated):
            stderr += _CUT
        names = ("stdout_truncated", "stderr_truncated")
        truncated = {name: True for name, is_cut in zip(names, output.is_truncated, strict=True) if is_cut}
        return {**_response(report, stdout, stderr), **truncated}

    def _settle(self, report: ExitReport, outer: Invocation, caller: wasmtime.Caller) -> None:
        """A nested run that exceeded the time or fuel ends the outer run too; otherwise it pays for the fuel used."""
        if report.kind == "timeout":
            raise DeadlineReached
        if outer.fuel is None:
            return
        if report.kind == "fuel":
            raise FuelGone
        ffi.wasmtime_context_set_fuel(caller._context(), self._runs.fuel_left)


def parse_command(request: dict[str, Any]) -> CommandRequest:
    """Validates everything: a NUL would silently cut an argument short."""
    given = {key: value for key, value in request.items() if value is not None}
    request = {"env": {}, "cwd": "/", "stdin": "", **given}
    argv, env, cwd, stdin = request.get("argv"), request["env"], request["cwd"], request["stdin"]
    if not isinstance(argv, list) or not argv or not all(isinstance(item, str) for item in argv):
        raise MalformedRequest("argv must be a list of strings")
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise MalformedRequest("env must map strings to strings")
    if not isinstance(cwd, str) or not isinstance(stdin, str):
        raise MalformedRequest("cwd and stdin must be strings")
    if not all(_is_plain_text(text) for text in (*argv, cwd, *env.keys(), *env.values())):
        raise MalformedRequest("NUL and lone surrogates are not allowed")
    return CommandRequest(argv, {**env, "PWD": cwd}, _decode("stdin", stdin))


def _is_plain_text(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _invocation(
    command: CommandRequest, outer: Invocation, memory_bytes: int, output: NestedOutput, caller: wasmtime.Caller
) -> Invocation:
    return outer._replace(
        **command._asdict(),
        setup=WasiSetup(output.stdout, output.stderr, outer.setup.directories),
        memory_bytes=memory_bytes,
        fuel=None if outer.fuel is None else _fuel(caller),
        is_own_module=True,
        is_nested=True,
    )


def _fuel(caller: wasmtime.Caller) -> int:
    left = ctypes.c_uint64(0)
    error = ffi.wasmtime_context_get_fuel(caller._context(), ctypes.byref(left))
    return 0 if error else left.value


def _response(report: ExitReport, stdout: bytes, stderr: bytes) -> dict[str, Any]:
    exit_code = report.exit_code
    if report.kind == "memory":
        exit_code, stderr = _OUT_OF_MEMORY, stderr + b"memory limit exceeded\n"
    elif report.kind == "failed":
        # The guest must not see our own message: it may name host paths.
        exit_code, stderr = _CANNOT_RUN, stderr + _NOT_STARTED.encode() + b"\n"
    elif report.kind == "trap":
        exit_code, stderr = exit_code or 1, stderr + report.message.encode() + b"\n"
    out, err = (base64.b64encode(data).decode() for data in (stdout, stderr))
    return {"exit_code": exit_code, "stdout": out, "stderr": err}


def _error_object(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


class NestedOutput:
    """Reads the output of a nested run on a thread, so that the run never blocks, and keeps it up to a limit.

    `stdout` and `stderr` are paths for the guest; `finish` returns the output.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = (bytearray(), bytearray())
        self.is_truncated = [False, False]
        self._readers: list[int] = []
        self._writers: list[int] = []
        try:
            for _ in self._kept:
                reader, writer = os.pipe()
                self._readers.append(reader)
                self._writers.append(writer)
        except OSError:
            for descriptor in (*self._readers, *self._writers):
                os.close(descriptor)
            raise
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
            self._read_all()
        finally:
            self._drained.release()

    def _read_all(self) -> None:
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
                at = open_streams[reader]
                room = self._most - len(self._kept[at])
                self._kept[at].extend(data[:room])
                self.is_truncated[at] = self.is_truncated[at] or len(data) > room
