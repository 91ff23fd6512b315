"""Worker processes behind a front: start, restart, reload, end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress
from functools import partial
from typing import NamedTuple

from warmcell.core.errors import InvalidRequest
from warmcell.core.records import replace
from warmcell.interfaces.serve.front.admission import Admission, WorkerRequests
from warmcell.interfaces.serve.front.client_connections import ClientConnections, Recipient
from warmcell.interfaces.serve.front.control import Control, Message, WorkerSlots, open_control
from warmcell.interfaces.serve.front.relay import Peer
from warmcell.interfaces.serve.front.shared_memory import SharedCounts
from warmcell.interfaces.serve.settings import Settings
from warmcell.lifetime.fair_semaphore import FairSemaphore
from warmcell.lifetime.host_program import command_of_module
from warmcell.lifetime.temporary_directory import temporary_directory

_log = logging.getLogger("warmcell.serve")
#: A worker that has not exited by itself is killed so many seconds after its time.
KILL_SECONDS = 2.0
#: Delay before a restart; doubled each time that the worker exits before it was ready.
RESTART_SECONDS, MAX_RESTART_SECONDS = 0.1, 10.0
#: The path of a Unix socket may have 107 bytes, and `/255.new` is added to that of the directory.
MAX_PATH = 99


def check_socket_path() -> None:
    """Raises `InvalidRequest` if the sockets of workers cannot be made in the temporary directory."""
    with temporary_directory("serve") as directory:
        if len(os.fsencode(directory)) > MAX_PATH:
            hint = "set TMPDIR to a shorter one, or leave --workers out"
            raise InvalidRequest(f"the path {directory} is too long for Unix sockets", hint=hint)


class Shared(NamedTuple):
    """The objects that the front shares with all workers."""

    queue: FairSemaphore
    admission: Admission
    connections: ClientConnections
    counts: SharedCounts
    counts_file: int


class ConnectedWorker:
    """A worker process that is connected to the front, and the slots and counts that it holds there."""

    def __init__(self, control: Control, recipient: Recipient, shared: Shared) -> None:
        self.control, self.recipient, self._connections = control, recipient, shared.connections
        self._slots, self._requests = WorkerSlots(shared.queue, control), WorkerRequests(shared.admission, control)
        self.was_ready = False

    def handle(self, message: Message) -> None:
        if "closed" in message:
            self._connections.close_one(self.recipient, message["closed"])
        else:
            (self._requests if "enter" in message or "exit" in message else self._slots).handle(message)

    def release(self) -> None:
        """Release what the process held, and pass it nothing more. Called when it has closed its connection."""
        self._connections.stop_passing_to(self.recipient)
        self._slots.close()
        self._requests.close()
        self.control.close()


class Worker(Peer):
    """One process at a time. Its socket exists while it is ready."""

    def __init__(self, number: int, path: str, settings: Settings, shared: Shared) -> None:
        super().__init__(f"worker {number}", path)
        self.number, self.is_ready = number, False
        self._settings, self._shared = settings, shared
        self._process: asyncio.subprocess.Process | None = None
        #: Whether the process has to read the files again when it is ready: until it handles SIGHUP, that would end it.
        self._must_reload = False
        self._ending = asyncio.Event()

    async def keep_running(self) -> None:
        """Run until `end`, restarting the process when it exits by itself or could not be started."""
        pause = RESTART_SECONDS
        while not self._ending.is_set():
            try:
                was_ready, what = await self._run_once(), "exited; its requests are lost"
            except (OSError, RuntimeError) as error:  # the host has no memory, process, thread or descriptor for it now
                was_ready, what = False, f"could not be started: {error}"
            if self._ending.is_set():
                return
            pause = RESTART_SECONDS if was_ready else min(2 * pause, MAX_RESTART_SECONDS)
            _log.error("worker %d %s; restarting it", self.number, what)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._ending.wait()

    async def _run_once(self) -> bool:
        """Run one process from start to exit; return whether it was ever ready."""
        with ExitStack() as opened:
            control, their_control = map(opened.enter_context, socket.socketpair())
            channel, their_channel = map(opened.enter_context, socket.socketpair(type=socket.SOCK_SEQPACKET))
            channel.setblocking(False)
            with their_control, their_channel, self._listen() as listening:
                sockets = (listening, their_control, their_channel)
                memory = (self._shared.connections.states_file, self._shared.counts_file)
                await self._start_process(*(each.fileno() for each in sockets), *memory)
            if self._ending.is_set():  # `end` was called before there was a process
                self.send_signal(signal.SIGTERM)
            process = ConnectedWorker(await open_control(control), Recipient(channel, self.number), self._shared)
            opened.pop_all()
        process.control.handle = partial(self._handle, process)
        process.control.send({name: getattr(self._settings, name) for name in Settings.__slots__})
        try:
            await process.control.closed.wait()
        finally:
            was_ready, self.is_ready = process.was_ready, False
            with suppress(FileNotFoundError):
                os.unlink(self.path)
            process.release()
            await self._wait_or_kill()
            self._shared.counts.clear(self.number)
            self._shared.connections.remove_recipient(process.recipient)
        return was_ready

    def _handle(self, process: ConnectedWorker, message: Message) -> None:
        if "ready" in message:
            os.rename(self._starting_path, self.path)
            process.was_ready = self.is_ready = True
            self._shared.connections.add_recipient(process.recipient)
            if self._must_reload:
                self.reload()
        else:
            process.handle(message)

    async def _start_process(self, *descriptors: int) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *command_of_module("warmcell.interfaces.serve.front.worker"),
            *map(str, (self.number, *descriptors)),
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # signals of the terminal are for the front, which lets runs finish
        )

    def _listen(self) -> socket.socket:
        """A new socket for each process: connections to the previous one must fail."""
        with suppress(FileNotFoundError):
            os.unlink(self._starting_path)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(self._starting_path)
        listening.listen(1024)
        return listening

    @property
    def _starting_path(self) -> str:
        return f"{self.path}.new"

    async def _wait_or_kill(self) -> None:
        """Wait for a process that has closed its control connection; kill it if it hangs."""
        assert self._process is not None
        try:
            async with asyncio.timeout(5.0):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def send_signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def reload(self) -> None:
        """Let the process read the token and policy files again, now or when it is ready."""
        self._must_reload = not self.is_ready
        if self.is_ready:
            self.send_signal(signal.SIGHUP)

    def end(self) -> None:
        """Let the process finish; kill it when it exceeds its own bound, as a stopped one does."""
        if not self._ending.is_set():
            self._ending.set()
            self.send_signal(signal.SIGTERM)
            seconds = self._settings.shutdown_seconds + KILL_SECONDS
            asyncio.get_running_loop().call_later(seconds, self.send_signal, signal.SIGKILL)


class Workers:
    """All workers, with their sockets in a private directory. Belongs to the front's event loop."""

    def __init__(self, settings: Settings, shared: Shared) -> None:
        self._directory = temporary_directory("serve")
        at = self._directory.__enter__()
        # Without `--usage` the workers share a temporary file, which ends with the server.
        settings = settings if settings.usage else replace(settings, usage=f"{at}/usage.db")
        #: The socket to which workers relay what only the front can answer.
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(f"{at}/front")
        self.listening.listen(1024)
        self.all = [Worker(number, f"{at}/{number}", settings, shared) for number in range(settings.workers)]
        self._tasks = [asyncio.ensure_future(worker.keep_running()) for worker in self.all]

    def reload(self) -> None:
        for worker in self.all:
            worker.reload()

    def end(self) -> None:
        """Let requests in progress finish, then end the processes."""
        for worker in self.all:
            worker.end()

    async def aclose(self) -> None:
        self.end()
        await asyncio.gather(*self._tasks)
        self.listening.close()
        self._directory.__exit__(None, None, None)
