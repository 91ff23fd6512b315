"""A worker process: loads modules and runs them, one at a time, for a supervisor at the other end of descriptor 0.

In a cage it is a fork of a process that has loaded all this (`forked.py`), else it is started as
`python -I -S wasm/worker.py <directory that holds wasmtime>`. It has no environment, no files and nothing of the
caller's; it ends when the supervisor goes away, even in the middle of a run.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from typing import NamedTuple

if __name__ == "__main__":
    gc.disable()  # until all is loaded, which stays
    sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.realpath(__file__)))]
    sys.path.append(sys.argv[1])

import wasmtime
from wasm.deadline import Deadline, DeadlineReached
from wasm.engine import Engines, Facts, Loaded, Refused, Source, write_compiled
from wasm.exec_call import ExecCall, NoSuchCommand
from wasm.fetch_call import parse_fetch
from wasm.frames import Channel, SupervisorGone, decode_run, encode_ending
from wasm.host_calls import HostCalls
from wasm.open_files import open_files_limit
from wasm.run import Outcome, Runner, Spec
from wasm.run_stack import RunStack
from wasm.wasi_calls import Wasi
from wasm.world import Preopen, World

TYPE_CHECKING = False
if not TYPE_CHECKING:  # its half in C: the rest takes longer to load
    import _socket as socket
else:  # only those who run Python load what components take
    import socket
    from typing import Any

    from wasm.component import ComponentEngines, LoadedComponent
    from wasmtime.component import Component

#: A supervisor has read an answer and returned to its caller by then.
_STEP_ASIDE_MS = 1


class Terms(NamedTuple):
    """What a run is given besides its own words. The supervisor says it once, and by its number from then on."""

    key: str
    timeout: float
    memory_bytes: int
    fuel: int | None
    world: World
    output_bytes: int
    open_files: int
    file_bytes: int | None
    may_fetch: bool
    may_exec: bool


class Worker:
    """The requests of the supervisor, each a method of the same name."""

    def __init__(self, control: socket.socket) -> None:
        self._channel = Channel(control)
        self._calls = HostCalls()
        self._deadline = Deadline(control.fileno(), self._interrupt)
        self._components: ComponentEngines | None = None
        wasi = Wasi(self._deadline)
        self._engines = Engines(wasi.functions(), self._calls.functions())
        self._runs = RunStack(Runner(self._deadline, wasi), self._deadline, self._calls)
        self._exec = ExecCall(self._runs, self._find_command)
        self._calls.answers = {"fetch": self._fetch, "exec": self._exec.answer}
        self._modules: dict[str, Loaded | LoadedComponent] = {}
        self._commands: dict[tuple[str, bool], str] = {}
        self._rehearsals: dict[str, list[str]] = {}
        #: What the last run found, and a run without directories.
        self._world = self._bare_world = World("", "")
        self._terms: dict[int, Terms] = {}
        self._is_confined = False
        #: The last request was there before everything was ready for it.
        self._is_pressed = False
        self._may_fetch = False
        #: Of the last run: how many files it could open, and how large they could be.
        self._limits: tuple[int, int | None] = 0, None

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
        operations = {"setup": self._setup, "load": self._load, "warm": self._warm}
        while True:
            message, blob = self._channel.receive()
            if not message:
                self._serve_run(*decode_run(blob))
            elif message["op"] == "terms":
                self._note_terms(message)
            else:
                self._channel.send(operations[message["op"]](message, blob))

    def _serve_run(self, number: int, argv: list[str], env: dict[str, str], stdin: bytes) -> None:
        terms = self._terms[number]
        if terms.key not in self._modules:
            self._channel.send({"op": "unknown"})
            return
        spec = Spec(argv, env, stdin, terms.world, terms.memory_bytes, terms.fuel, terms.may_exec)
        self._channel.send_encoded(self._run(spec, terms))
        self._let_go_first()
        self._runs.clean_up()
        if terms.fuel is None and not self._channel.has_more():
            self._get_ready(terms.key, terms.memory_bytes)
        self._is_pressed = self._channel.has_more()

    def _note_terms(self, message: dict[str, Any]) -> None:
        fields = {name: message[name] for name in Terms._fields if name in message}
        world = self._bare_world._replace(preopens=tuple(Preopen(*item) for item in message["preopens"]))
        self._terms[message["number"]] = Terms(world=world, **fields)

    def _let_go_first(self) -> None:
        """Where both share a processor the supervisor goes on first: what follows an answer is for nobody. It goes on
        when we sleep, and not surely when we only yield; who asks without a pause is asked again before that is over.
        """
        if self._is_pressed:
            os.sched_yield()
        else:
            self._channel.has_more(_STEP_ASIDE_MS)

    def _setup(self, message: dict[str, Any], _blob: bytes) -> dict[str, Any]:
        stdout, stderr, log = self._channel.take_descriptors()
        self._world = self._bare_world = World(f"/proc/self/fd/{stdout}", f"/proc/self/fd/{stderr}")
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
        source = Source(message["format"], blob, message["entry"], message["fuel"], message["host"])
        self._rehearsals[message["key"]] = message["rehearsal"]
        if source.format == "compiled":
            if descriptor is None:
                raise Refused("stale", "no compiled form came with the request")
            self._modules[message["key"]] = self._adopt(source, Facts(**message["facts"]), descriptor)
            return {"op": "loaded"}
        loaded, compiled = self._compile(source)
        self._modules[message["key"]] = loaded
        is_written = descriptor is not None and write_compiled(compiled.serialize(), descriptor)
        return {"op": "loaded", "facts": loaded.facts._asdict(), "is_written": is_written}

    def _adopt(self, source: Source, facts: Facts, descriptor: int) -> Loaded | LoadedComponent:
        file = reopened(descriptor)
        try:
            if facts.is_component:
                return self._component_engines().adopt(facts, source.needs_fuel, file)
            return self._engines.adopt(source, facts, file)
        finally:
            os.close(file)

    def _compile(self, source: Source) -> tuple[Loaded | LoadedComponent, wasmtime.Module | Component]:
        if source.format != "component":
            return self._engines.compile(source)
        loaded = self._component_engines().compile(source.blob, source.entry, source.needs_fuel)
        return loaded, loaded.component

    def _run(self, spec: Spec, terms: Terms) -> bytes:
        """How it ended, ready to send."""
        self._deadline.start(terms.timeout)
        cpu_before = time.process_time()
        try:
            if self._limits != (terms.open_files, terms.file_bytes):
                self._set_limits(terms.open_files, terms.file_bytes)
            self._may_fetch, self._exec.is_allowed = terms.may_fetch, terms.may_exec
            self._exec.output_bytes = terms.output_bytes
            self._world = terms.world
            outcome = self._runs.run(self._modules[terms.key], spec)
        except DeadlineReached:
            outcome = Outcome("timeout")
        finally:
            self._deadline.stop()
        cpu = time.process_time() - cpu_before
        return encode_ending(outcome.kind, outcome.exit_code, outcome.memory_bytes, cpu, outcome.message)

    def _warm(self, message: dict[str, Any], _blob: bytes) -> dict[str, Any]:
        """A run of the module is expected, nobody knows when."""
        if message["key"] in self._modules:
            self._get_ready(message["key"], message["memory_bytes"])
        return {"op": "warmed"}

    def _get_ready(self, key: str, memory_bytes: int) -> None:
        """Nobody waits: an instance for the next run of the same module under the same limits is made now."""
        loaded, rehearsal = self._modules[key], self._rehearsals.pop(key, None)
        self._may_fetch = self._exec.is_allowed = False
        if rehearsal:
            self._runs.rehearse(loaded, rehearsal)
        # What was shown to a confined worker is its own; of the host nothing is kept open.
        world = self._world if self._is_confined else self._bare_world
        self._runs.make_spare(loaded, memory_bytes, world, self._channel.has_more)

    def _set_limits(self, open_files: int, file_bytes: int | None) -> None:
        """A second line, for the files that a guest opens and writes under its preopens."""
        open_files_limit.set(open_files)
        if file_bytes != self._limits[1]:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            soft = hard if file_bytes is None else file_bytes
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
            )
        self._limits = open_files, file_bytes

    def _ask(self, message: dict[str, Any], blob: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """A question to the supervisor in the middle of a run."""
        self._channel.send({"op": "call", **message}, blob)
        return self._channel.receive()

    def _fetch(self, request: dict[str, Any], _caller: wasmtime.Caller) -> bytes | None:
        if not self._may_fetch:
            return None
        fields, body = parse_fetch(request)
        return self._ask({"what": "fetch", **fields}, body)[1]

    def _find_command(self, name: str, needs_fuel: bool) -> Loaded | LoadedComponent:
        key = self._commands.get((name, needs_fuel), "")
        if key not in self._modules:  # not asked for yet, or dropped since
            # The supervisor may have to compile first. That is not the guest's time, so the clock stands still.
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
            raise NoSuchCommand(answer["reason"])
        if answer["key"] in self._modules:
            for descriptor in self._channel.take_descriptors():
                os.close(descriptor)
            return str(answer["key"])
        reply = self._load(answer, blob)
        if reply["op"] == "refused":
            raise NoSuchCommand("it cannot be loaded")
        self._channel.send({"op": "call", "what": "loaded"})
        return str(answer["key"])


def reopened(descriptor: int) -> int:
    """The same file by its own path, where that is shown here: of those that come from outside, only files in memory
    may be opened by their number.
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
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # What is there now stays for ever: collecting garbage need not look at it again during runs.
    gc.freeze()
    gc.enable()
    try:
        Worker(control).serve()
    except SupervisorGone:
        os._exit(0)


if __name__ == "__main__":
    main()
