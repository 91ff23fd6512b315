"""A worker process: loads modules and runs them, one at a time, for a supervisor at the other end of descriptor 0.

In a cage it is a fork of a process that has already imported all of this (`forked.py`); otherwise it is started as
`python -I -S wasm/worker.py <directory that holds wasmtime>`. It has no environment, no files and nothing else of the
caller's, and exits when the supervisor closes the socket, even during a run.
"""

from __future__ import annotations

import array
import gc
import os
import resource
import select
import sys
import time

if __name__ == "__main__":
    gc.disable()  # until everything is imported: none of it is ever freed
    sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.realpath(__file__)))]
    sys.path.append(sys.argv[1])

import wasmtime
from wasm.deadline import Deadline, DeadlineReached
from wasm.engine import Engines, LoadedModule, ModuleFacts, ModuleInput, Refused, write_compiled
from wasm.protocol import (
    HEADER,
    ExitReport,
    RunLimits,
    RunSpec,
    decode_run,
    decode_spec,
    encode_exit,
    encode_frame,
    parse_message,
)
from wasm.run import Invocation, Runner, RunStack
from wasm.wasi import WasiCalls, WasiSetup, open_files_limit

from wasm.host_calls import CommandUnavailable, ExecCall, HostCalls, parse_fetch

TYPE_CHECKING = False
if not TYPE_CHECKING:  # the C half of the module: the rest takes longer to load
    import _socket as socket
else:  # loaded only when a component is
    import socket
    from typing import Any

    from wasm.component import ComponentEngines, LoadedComponent
    from wasmtime.component import Component

#: Long enough for the supervisor to read the exit report and return to its caller.
_YIELD_MS = 1
_MAX_DESCRIPTORS = 8
_RECEIVE_BYTES = 1 << 14
_ANCILLARY_BYTES = socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4)


class SupervisorGone(Exception):
    """The supervisor closed its end."""


class DescriptorsLost(Exception):
    """The kernel dropped descriptors that came with a frame: this process has too many open files."""


class Channel:
    """The worker's end of the control socket: blocking, and able to receive descriptors.

    Keeps these until `take_descriptors`.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._buffer = bytearray()
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._descriptors: list[int] = []

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        self.send_encoded(encode_frame(message, blob))

    def send_encoded(self, data: bytes) -> None:
        try:
            self._control.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise SupervisorGone from error

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next message and its blob. A run has an empty message."""
        if not self._buffer:
            data = self._receive_some()
            if len(data) >= HEADER.size:
                text_size, blob_size = HEADER.unpack_from(data)
                if len(data) == HEADER.size + text_size + blob_size:  # exactly one frame: the usual case
                    return _split(data, text_size)
            self._buffer += data
        self._fill(HEADER.size)
        text_size, blob_size = HEADER.unpack_from(self._buffer)
        size = HEADER.size + text_size + blob_size
        self._fill(size)
        frame = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return _split(frame, text_size)

    def has_more(self, milliseconds: int = 0) -> bool:
        """Whether more data has arrived, or arrives within `milliseconds`."""
        return bool(self._buffer) or bool(self._poll.poll(milliseconds))

    def take_descriptors(self) -> list[int]:
        """The descriptors received so far, for the caller to close."""
        taken, self._descriptors = self._descriptors, []
        return taken

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            self._buffer += self._receive_some()

    def _receive_some(self) -> bytes:
        try:
            data, ancillary, flags, _ = self._control.recvmsg(_RECEIVE_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError as error:
            raise SupervisorGone from error
        if not data:
            raise SupervisorGone
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                self._descriptors.extend(received)
        if flags & socket.MSG_CTRUNC:
            raise DescriptorsLost("the kernel dropped descriptors that came with a frame")
        return data


def _split(frame: bytes, text_size: int) -> tuple[dict[str, Any], bytes]:
    end = HEADER.size + text_size
    return parse_message(frame[HEADER.size : end]) if text_size else {}, frame[end:]


class WorkerServer:
    """Serves the supervisor's requests, each in a method of the same name."""

    def __init__(self, control: socket.socket) -> None:
        self._channel = Channel(control)
        self._calls = HostCalls()
        self._deadline = Deadline(control.fileno(), self._interrupt)
        self._components: ComponentEngines | None = None
        wasi = WasiCalls(self._deadline)
        self._engines = Engines(wasi.functions(), self._calls.functions())
        self._runs = RunStack(Runner(self._deadline, wasi), self._deadline, self._calls)
        self._exec = ExecCall(self._runs, self._find_command)
        self._calls.handlers = {"fetch": self._fetch, "exec": self._exec.handle}
        self._modules: dict[str, LoadedModule | LoadedComponent] = {}
        self._commands: dict[tuple[str, bool], str] = {}
        self._rehearsals: dict[str, list[str]] = {}
        #: Of the last run, and of a run without directories.
        self._setup = self._bare_setup = WasiSetup("", "")
        self._specs: dict[int, tuple[RunSpec, WasiSetup]] = {}
        self._is_confined = False
        #: The last request arrived before the worker was ready for it.
        self._is_busy = False
        self._may_fetch = False
        #: The limits on open files and file size that are in force.
        self._file_limits: tuple[int, int | None] = 0, None

    def _interrupt(self) -> None:
        self._engines.interrupt_all()
        if self._components is not None:
            self._components.interrupt_all()

    def _component_engines(self) -> ComponentEngines:
        if self._components is None:
            from wasm.component import ComponentEngines

            self._components = ComponentEngines()
        return self._components

    def serve(self) -> None:
        operations = {"setup": self._set_up, "load": self._load, "warm": self._warm}
        while True:
            message, blob = self._channel.receive()
            if not message:
                self._serve_run(*decode_run(blob))
            elif message["op"] == "spec":
                number, spec = decode_spec(message)
                self._specs[number] = spec, self._bare_setup._replace(directories=spec.directories)
            else:
                self._channel.send(operations[message["op"]](message, blob))

    def _serve_run(self, number: int, argv: list[str], env: dict[str, str], stdin: bytes) -> None:
        spec, setup = self._specs[number]
        key, limits = spec.module_key, spec.limits
        if key not in self._modules:
            self._channel.send({"op": "unknown"})
            return
        invocation = Invocation(argv, env, stdin, setup, limits.memory_bytes, limits.fuel, spec.may_exec)
        self._channel.send_encoded(encode_exit(self._run(invocation, spec)))
        self._yield_to_supervisor()
        self._runs.clean_up()
        if limits.fuel is None and not self._channel.has_more():
            self._make_spare(key, limits.memory_bytes)
        self._is_busy = self._channel.has_more()

    def _yield_to_supervisor(self) -> None:
        """Lets the supervisor continue first if both share a processor: the rest of our work can wait.

        Sleeping hands the processor over; yielding may not. A supervisor that sends one run after the other is back
        before the sleep would be over, so with those we only yield.
        """
        if self._is_busy:
            os.sched_yield()
        else:
            self._channel.has_more(_YIELD_MS)

    def _set_up(self, message: dict[str, Any], _blob: bytes) -> dict[str, Any]:
        stdout, stderr, log = self._channel.take_descriptors()
        self._setup = self._bare_setup = WasiSetup(f"/proc/self/fd/{stdout}", f"/proc/self/fd/{stderr}")
        self._is_confined = message["is_confined"]
        os.dup2(log, 2)
        os.close(log)
        return {"op": "ready"}

    def _load(self, message: dict[str, Any], blob: bytes) -> dict[str, Any]:
        for key in message["drop"]:
            if key in self._modules:
                self._runs.forget(self._modules.pop(key))
        descriptors = self._channel.take_descriptors()
        try:
            return self._load_from(message, blob, descriptors[0] if descriptors else None)
        except Refused as refused:
            return {"op": "refused", "reason": refused.reason, "detail": str(refused)}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _load_from(self, message: dict[str, Any], blob: bytes, descriptor: int | None) -> dict[str, Any]:
        module = ModuleInput(message["format"], blob, message["entry"], message["fuel"], message["host"])
        self._rehearsals[message["key"]] = message["rehearsal"]
        if module.format == "compiled":
            if descriptor is None:
                raise Refused("stale", "the request has no compiled module")
            self._modules[message["key"]] = self._adopt(module, ModuleFacts(**message["facts"]), descriptor)
            return {"op": "loaded"}
        loaded, compiled = self._compile(module)
        self._modules[message["key"]] = loaded
        is_written = descriptor is not None and write_compiled(compiled.serialize(), descriptor)
        return {"op": "loaded", "facts": loaded.facts._asdict(), "is_written": is_written}

    def _adopt(self, module: ModuleInput, facts: ModuleFacts, descriptor: int) -> LoadedModule | LoadedComponent:
        file = reopen(descriptor)
        try:
            if facts.is_component:
                return self._component_engines().adopt(facts, module.needs_fuel, file)
            return self._engines.adopt(module, facts, file)
        finally:
            os.close(file)

    def _compile(self, module: ModuleInput) -> tuple[LoadedModule | LoadedComponent, wasmtime.Module | Component]:
        if module.format != "component":
            return self._engines.compile(module)
        loaded = self._component_engines().compile(module.blob, module.entry, module.needs_fuel)
        return loaded, loaded.component

    def _run(self, invocation: Invocation, spec: RunSpec) -> ExitReport:
        self._deadline.start(spec.limits.timeout)
        cpu_before = time.process_time()
        try:
            self._set_file_limits(spec.limits)
            self._may_fetch, self._exec.is_allowed = spec.may_fetch, spec.may_exec
            self._exec.output_bytes = spec.limits.output_bytes
            self._setup = invocation.setup
            report = self._runs.run(self._modules[spec.module_key], invocation)
        except DeadlineReached:
            report = ExitReport("timeout")
        finally:
            self._deadline.stop()
        return report._replace(cpu_seconds=time.process_time() - cpu_before)

    def _warm(self, message: dict[str, Any], _blob: bytes) -> dict[str, Any]:
        """Prepares for a run of the module at some later time."""
        if message["key"] in self._modules:
            self._make_spare(message["key"], message["memory_bytes"])
        return {"op": "warmed"}

    def _make_spare(self, key: str, memory_bytes: int) -> None:
        """While idle: makes an instance for the next run of the same module under the same limits."""
        loaded, rehearsal = self._modules[key], self._rehearsals.pop(key, None)
        self._may_fetch = self._exec.is_allowed = False
        if rehearsal:
            self._runs.rehearse(loaded, rehearsal)
        # A confined worker keeps its own mounts open; otherwise nothing of the host stays open between runs.
        setup = self._setup if self._is_confined else self._bare_setup
        self._runs.make_spare(loaded, memory_bytes, setup, self._channel.has_more)

    def _set_file_limits(self, limits: RunLimits) -> None:
        """A second line of defence, for files that a guest opens and writes in its directories."""
        wanted = limits.open_files, limits.file_bytes
        if wanted == self._file_limits:
            return
        open_files_limit.set(limits.open_files)
        if limits.file_bytes != self._file_limits[1]:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            soft = hard if limits.file_bytes is None else limits.file_bytes
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
            )
        self._file_limits = wanted

    def _ask(self, message: dict[str, Any], blob: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Sends a host call to the supervisor during a run and waits for the answer."""
        self._channel.send({"op": "call", **message}, blob)
        return self._channel.receive()

    def _fetch(self, request: dict[str, Any], _caller: wasmtime.Caller) -> bytes | None:
        if not self._may_fetch:
            return None
        fields, body = parse_fetch(request)
        return self._ask({"what": "fetch", **fields}, body)[1]

    def _find_command(self, name: str, needs_fuel: bool) -> LoadedModule | LoadedComponent:
        key = self._commands.get((name, needs_fuel), "")
        if key not in self._modules:  # first use, or dropped since
            # The supervisor may have to compile the module. The guest's clock stops meanwhile.
            remaining = self._deadline.remaining()
            self._deadline.stop()
            try:
                answer, blob = self._ask({"what": "command", "name": name, "fuel": needs_fuel})
                key = self._commands[name, needs_fuel] = self._take_command(answer, blob)
            finally:
                self._deadline.start(remaining)
        return self._modules[key]

    def _take_command(self, answer: dict[str, Any], blob: bytes) -> str:
        if not answer["is_found"]:
            raise CommandUnavailable(answer["reason"])
        if answer["key"] in self._modules:
            for descriptor in self._channel.take_descriptors():
                os.close(descriptor)
            return str(answer["key"])
        reply = self._load(answer, blob)
        if reply["op"] == "refused":
            raise CommandUnavailable("its module cannot be loaded")
        self._channel.send({"op": "call", "what": "loaded"})
        return str(answer["key"])


def reopen(descriptor: int) -> int:
    """Opens the same file by its path if that is visible here: the cage lets us open by descriptor number only files
    in memory.
    """
    try:
        file = os.open(os.readlink(f"/proc/self/fd/{descriptor}"), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return os.dup(descriptor)
    if os.path.sameopenfile(file, descriptor):
        return file
    os.close(file)
    return os.dup(descriptor)


def main() -> None:
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    os.close(null)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Nothing imported so far is ever freed: keep the garbage collector from scanning it during runs.
    gc.freeze()
    gc.enable()
    try:
        WorkerServer(control).serve()
    except SupervisorGone:
        os._exit(0)


if __name__ == "__main__":
    main()
