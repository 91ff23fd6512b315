"""The processes behind a front: started, watched, started again, told to reload, ended."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
from contextlib import suppress

from warmcell.core.errors import InvalidRequest
from warmcell.interfaces.serve.front.shared_queue import PlacesOfWorker, messages, send
from warmcell.interfaces.serve.settings import Settings
from warmcell.lifetime.host_program import own_interpreter
from warmcell.lifetime.temporary_directory import temporary_directory
from warmcell.lifetime.tenant_queue import TenantQueue

_log = logging.getLogger("warmcell.serve")
#: Before one that ended is started again; doubled each time that it ends before it was ready.
PAUSE_SECONDS, LONGEST_PAUSE = 0.1, 10.0
#: Of what a socket's address may have, which is 107.
LONGEST_PATH = 100


class Worker:
    """One process at a time, at one address. `under_way` is how many requests the front has given it."""

    def __init__(self, number: int, path: str, settings: Settings, queue: TenantQueue) -> None:
        self.number, self.path = number, path
        self.under_way = 0
        self.is_ready = asyncio.Event()
        self._settings, self._queue = settings, queue
        self._process: asyncio.subprocess.Process | None = None
        self._ending = asyncio.Event()

    async def keep(self) -> None:
        """Runs until `end`: when the process ends by itself, another takes its place."""
        pause = PAUSE_SECONDS
        while not self._ending.is_set():
            was_ready = await self._live()
            if self._ending.is_set():
                return
            pause = PAUSE_SECONDS if was_ready else min(2 * pause, LONGEST_PAUSE)
            _log.error("worker %d ended; what it was doing is lost, and another takes its place", self.number)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._ending.wait()

    async def _live(self) -> bool:
        """One process, from its start to its end: whether it ever was ready."""
        ours, theirs = socket.socketpair()
        listening = self._listen()
        with theirs, listening:
            words = [str(self.number), str(listening.fileno()), str(theirs.fileno())]
            self._process = await asyncio.create_subprocess_exec(
                own_interpreter(),
                *("-m", "warmcell.interfaces.serve.front.worker", *words),
                pass_fds=(listening.fileno(), theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # what a terminal sends is for the front, which lets runs end first
            )
        if self._ending.is_set():  # meanwhile, when there was nobody to tell
            self.tell(signal.SIGTERM)
        reader, writer = await asyncio.open_connection(sock=ours)
        send(writer, {name: getattr(self._settings, name) for name in Settings.__slots__})
        places, was_ready = PlacesOfWorker(self._queue, writer), False
        try:
            async for message in messages(reader):
                if "ready" in message:
                    was_ready = True
                    self.is_ready.set()
                else:
                    places.hear(message)
        finally:
            self.is_ready.clear()
            places.close()
            writer.close()
            await self._ended()
        return was_ready

    def _listen(self) -> socket.socket:
        """Anew for each process: what waits at the address of one that ended must hear of it."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(self.path)
        listening.listen(1024)
        return listening

    async def _ended(self) -> None:
        """It may have closed its side and live on, or hang: it has no way to be reached any more."""
        assert self._process is not None
        try:
            async with asyncio.timeout(self._settings.drain_timeout + 5 if self._ending.is_set() else 5.0):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def tell(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def end(self) -> None:
        if not self._ending.is_set():
            self._ending.set()
            self.tell(signal.SIGTERM)


class Workers:
    """All of them, in a directory that is nobody else's. Belongs to the front's event loop."""

    def __init__(self, settings: Settings, queue: TenantQueue) -> None:
        self._directory = temporary_directory("serve")
        at = self._directory.__enter__()
        if len(at) > LONGEST_PATH:
            self._directory.__exit__(None, None, None)
            hint = "set TMPDIR to a shorter one, or leave --workers out"
            raise InvalidRequest(f"{at} is too long a name for a directory of sockets", hint=hint)
        self.all = [Worker(number, f"{at}/{number}", settings, queue) for number in range(settings.workers)]
        self._keeping = [asyncio.ensure_future(worker.keep()) for worker in self.all]

    def reload(self) -> None:
        for worker in self.all:
            worker.tell(signal.SIGHUP)

    def end(self) -> None:
        """What is under way is finished first."""
        for worker in self.all:
            worker.end()

    async def aclose(self) -> None:
        self.end()
        await asyncio.gather(*self._keeping)
        self._directory.__exit__(None, None, None)
