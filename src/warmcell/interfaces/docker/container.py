"""Container: one container, its state, its main program, its output, and the programs that `exec` starts in it."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from warmcell.core.errors import MemoryExceeded, SandboxError
from warmcell.images import Image
from warmcell.interfaces.docker.container_cage import ContainerCage, make_small_ring
from warmcell.interfaces.docker.container_spec import ContainerSpec, read_env
from warmcell.interfaces.docker.messages import DockerError, check_size, text_field, texts_field
from warmcell.interfaces.docker.output_log import Changing, OutputLog
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.interface import PtySize
from warmcell.sandbox.local.live import listen
from warmcell.sandbox.local.process import LocalProcess
from warmcell.sessions.ports import PortListener

_KILLED = 128 + signal.SIGKILL
#: How long a killed program may take to end.
_KILL_SECONDS = 15.0
#: How many `exec` processes a container keeps, ended ones included, and the memory of their descriptions.
_MAX_EXECS, _MAX_EXEC_BYTES = 100, 8 << 20
_MAX_CONNECTIONS = 64
DEFAULT_SIZE = PtySize(80, 24)

#: Action and attributes of an event.
OnEvent = Callable[["Container", str, dict[str, str]], None]


@dataclass(frozen=True, slots=True)
class ExecSpec:
    argv: tuple[str, ...]
    env: Mapping[str, str]
    working_dir: str
    has_tty: bool
    has_stdin: bool
    #: The memory that the client's description takes.
    size: int = 0


def read_exec_spec(document: Mapping[str, Any], working_dir: str, user: str) -> ExecSpec:
    """Parse a request for an exec process. `working_dir` and `user` are the container's."""
    if document.get("Privileged"):
        raise DockerError(400, "Privileged is not supported: a container never gets privileges on the host")
    wanted = text_field(document, "User")
    if not is_same_user(wanted, user):
        reason = "all programs and files of a container belong to one user"
        raise DockerError(400, f"User {wanted[:80]!r} is not supported in this container: {reason}, here {user!r}")
    argv = texts_field(document, "Cmd")
    if not argv:
        raise DockerError(400, "No exec command specified")
    return ExecSpec(
        argv=argv,
        env=read_env(document),
        working_dir=text_field(document, "WorkingDir") or working_dir,
        has_tty=bool(document.get("Tty")),
        has_stdin=bool(document.get("AttachStdin")),
        size=check_size(document, "the exec process"),
    )


def is_same_user(wanted: str, user: str) -> bool:
    """Whether both name the same user, by name or number. The group is ignored: there is only one."""
    roots = ("root", "0")
    first, second = wanted.partition(":")[0], user.partition(":")[0]
    return not first or first == second or (first in roots and second in roots)


@dataclass(slots=True)
class ExecProcess:
    spec: ExecSpec
    id: str = field(default_factory=lambda: secrets.token_hex(32))
    process: LocalProcess | None = None
    #: Set once it was asked to start, also if that failed.
    is_started: bool = False
    is_starting: bool = False
    #: Its client disconnected before it could follow the output.
    is_abandoned: bool = False
    size: PtySize = field(default_factory=lambda: PtySize(80, 24))

    @property
    def is_running(self) -> bool:
        return self.is_starting or (self.process is not None and self.process.info.is_running)

    @property
    def has_ended(self) -> bool:
        return self.is_started and not self.is_running

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs, 137 if it ended with its container."""
        if not self.has_ended:
            return None
        if self.process is None:
            return 126
        code = self.process.info.exit_code
        return 137 if code is None else code

    async def start(self, cage: ContainerCage, *, joins_output: bool) -> LocalProcess:
        if self.is_started:
            raise DockerError(409, f"Error: Exec command {self.id[:12]} is already running or has ended")
        self.is_started = self.is_starting = True
        spec = self.spec
        pty = self.size if spec.has_tty else None
        options: dict[str, Any] = {"env": spec.env, "pty": pty, "stdin": spec.has_stdin, "joins_output": joins_output}
        try:
            self.process = await cage.start(spec.argv, spec.working_dir, ring=make_small_ring, **options)
        finally:
            self.is_starting = False
        if self.is_abandoned:
            self.abandon()
        return self.process

    def abandon(self) -> None:
        """Let the program continue without the client that started it, also if it is still being started."""
        self.is_abandoned = True
        if self.process is not None:
            with suppress(SandboxError):  # the container has ended
                self.discard_output()

    def discard_output(self) -> None:
        """Let the program print without a reader: until its output is followed once, it stays in the pipes."""
        assert self.process is not None
        with self.process.follow():
            pass


class Container(Changing):
    """States: created, running, exited; `is_removed` at the end. Belongs to one event loop."""

    def __init__(self, name: str, spec: ContainerSpec, image: Image, cage: ContainerCage, on_event: OnEvent) -> None:
        super().__init__()
        self.id = secrets.token_hex(32)
        self.name, self.spec, self.image, self.cage = name, spec, image, cage
        self._on_event = on_event
        self.created = time.time()
        self.started = self.finished = 0.0
        self.state = "created"
        self.exit_code, self.is_oom_killed, self.error = 0, False, ""
        self.is_removed = False
        #: Its main program has ended, and the others are killed.
        self.is_ending = False
        self.failed_starts = 0
        self.log = OutputLog()
        self.main: LocalProcess | None = None
        self.execs: dict[str, ExecProcess] = {}
        self.ports: dict[int, PortListener] = {}
        self.size = DEFAULT_SIZE
        #: The restarts in progress: their end of the main program does not remove the container.
        self.restarts = 0
        #: Volumes without a name, which are removed with the container.
        self.own_volumes: list[str] = []
        self._lock = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def is_idle(self) -> bool:
        """Whether it neither runs nor is being started or removed."""
        return not (self.is_running or self.is_removed or self._lock.locked())

    def emit(self, action: str, **attributes: str) -> None:
        self._on_event(self, action, attributes)

    # ---- starting and ending ----

    async def start(self) -> bool:
        """Start the main program. Return False if it runs already."""
        async with self._lock:
            if self.is_running:
                return False
            if self.is_removed:
                raise DockerError(409, f"container {self.id[:12]} is being removed")
            try:
                process = await self._start_main()
            except BaseException:
                await self._close_ports()
                self.failed_starts += 1
                self._wake()
                raise
            self.main, self.started, self.finished, self.is_ending = process, time.time(), 0.0, False
            self.exit_code, self.is_oom_killed, self.error = 0, False, ""
            self.log.open()
            self._set_state("running")
            self._watching = asyncio.ensure_future(self._watch(process))
        self.emit("start")
        return True

    async def _start_main(self) -> LocalProcess:
        spec = self.spec
        await self.cage.request("mkdir", path=spec.working_dir)
        await self._open_ports()
        pty = self.size if spec.has_tty else None
        process = await self.cage.start(spec.argv, spec.working_dir, pty=pty, stdin=spec.has_stdin)
        if process.start_failure:
            self._refuse_start(process)
        return process

    def _refuse_start(self, process: LocalProcess) -> NoReturn:
        """Raise the error for a missing or not executable program, in the words that clients look for."""
        process.kill_soon()
        missing = process.start_failure == 2
        self.exit_code = 127 if missing else 126
        self.error = f'exec: "{self.spec.argv[0][:200]}": ' + (
            "executable file not found in $PATH" if missing else "permission denied"
        )
        raise DockerError(400, f"failed to create task for container: {self.error}: unknown")

    async def _watch(self, process: LocalProcess) -> None:
        """Keep the output until the main program ends; then end everything else in the container."""
        try:
            async for event in process.output():
                self.log.add(event.stream, event.data)
                await asyncio.sleep(0)  # there may be many more pieces, each of which takes milliseconds
            self.exit_code = process.result().exit_code
        except MemoryExceeded as error:
            self.exit_code, self.is_oom_killed, self.error = _KILLED, True, str(error)
            self.emit("oom")
        except SandboxError as error:
            self.exit_code, self.error = _KILLED, str(error)
        finally:
            await self._end()

    async def _end(self) -> None:
        self.is_ending = True
        with suppress(SandboxError):  # the cage has ended, and everything in it
            await self.cage.kill_all()
        await self._close_ports()
        self.log.close()
        self.finished = time.time()
        self._set_state("exited")
        self.emit("die", exitCode=str(self.exit_code))

    def _set_state(self, state: str) -> None:
        self.state = state
        self._wake()

    async def wait_for_change(self) -> None:
        await self._changed.wait()

    def running_main(self) -> LocalProcess:
        """The main program. Raises `DockerError` if it does not run."""
        if not self.is_running or self.main is None:
            raise DockerError(409, f"container {self.id[:12]} is not running")
        return self.main

    async def start_exec(self, process: ExecProcess, *, joins_output: bool) -> LocalProcess:
        """Start a program besides the main one. Raises `DockerError` if that has ended: this one would outlive it."""
        self.running_main()
        if self.is_ending:
            raise DockerError(409, f"container {self.id[:12]} is not running")
        return await process.start(self.cage, joins_output=joins_output)

    async def signal(self, number: int) -> None:
        main = self.running_main()
        self.emit("kill", signal=str(number))
        await (main.kill() if number == signal.SIGKILL else main.signal(number))
        if number == signal.SIGKILL:
            await self._wait_for_end(_KILL_SECONDS)

    async def stop(self, number: int, seconds: float | None) -> bool:
        """Signal the main program, and kill it after `seconds` (None: never). Return False if it does not run."""
        if not self.is_running:
            return False
        with suppress(DockerError):  # it ended by itself just now
            await self.signal(number)
            if not await self._wait_for_end(seconds):
                await self.signal(signal.SIGKILL)
        self.emit("stop")
        return True

    async def _wait_for_end(self, seconds: float | None) -> bool:
        """Wait for the end of the main program. Return whether it ended in time."""
        try:
            async with asyncio.timeout(seconds):
                while self.is_running:
                    await self.wait_for_change()
        except TimeoutError:
            return False
        return True

    async def resize(self, size: PtySize) -> None:
        self.size = size
        if self.is_running and self.main is not None and self.spec.has_tty:
            await self.main.resize(size)

    async def remove(self) -> None:
        """End the container and its cage."""
        self.is_removed = True
        async with self._lock:
            await self.cage.close()
            if self._watching is not None:
                await asyncio.wait({self._watching})
            await self._close_ports()
        self._wake()
        self.emit("destroy")

    # ---- ports ----

    async def _open_ports(self) -> None:
        try:
            for port, wanted in self.spec.ports.items():
                make = partial(listen, lambda: self.cage.current, port, wanted, _MAX_CONNECTIONS)
                self.ports[port] = await in_thread(make, discard=lambda listener: listener.close())
        except OSError as error:
            raise DockerError(500, f"port {wanted} could not be bound: {error.strerror}") from None

    async def _close_ports(self) -> None:
        ports, self.ports = self.ports, {}
        for listener in ports.values():
            await in_thread(listener.close)

    # ---- output and input of the main program ----

    async def wait_for_start(self) -> LocalProcess | None:
        """Wait until the main program runs, and return it; None if it could not be started."""
        failed = self.failed_starts
        while not self.is_running:
            if self.is_removed or self.failed_starts != failed:
                return None
            await self.wait_for_change()
        return self.main

    # ---- exec ----

    def add_exec(self, process: ExecProcess) -> None:
        """Add an exec process. Forgets the oldest ended ones if there are too many or they take too much memory."""
        for old in [other.id for other in self.execs.values() if other.has_ended]:
            if self._has_room_for(process):
                break
            del self.execs[old]
        if not self._has_room_for(process):
            most = f"{_MAX_EXECS} exec processes, or {_MAX_EXEC_BYTES >> 20} MiB of their descriptions"
            raise DockerError(409, f"the container has {most}; wait until some have ended")
        self.execs[process.id] = process

    def _has_room_for(self, process: ExecProcess) -> bool:
        size = process.spec.size + sum(other.spec.size for other in self.execs.values())
        return len(self.execs) < _MAX_EXECS and size <= _MAX_EXEC_BYTES
