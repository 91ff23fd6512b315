"""What E2B's protocol keeps with a sandbox: its secrets, commands, watchers and files; and the order of starts."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
from base64 import b64encode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from warmcell.interfaces.serve.e2b.guest_files import GuestFiles
from warmcell.interfaces.serve.responses import HttpError
from warmcell.interfaces.serve.run_places import ImageChoice
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry
from warmcell.interfaces.serve.saved_sessions import saving_lock, sessions_of
from warmcell.interfaces.serve.service import Service
from warmcell.lifetime.fair_semaphore import FairSemaphore
from warmcell.policy.places import USER_HOME
from warmcell.sandbox.processes import AsyncProcess

HOME = USER_HOME
#: The home of E2B's user `root`, which is the same user here and has the same home.
ROOT_HOME = "/root"
USERS = ("user", "root", "")
#: Where an image has its interpreter.
_IMAGE_PATH = "/usr/local/bin:/usr/bin:/bin"
#: How long a pause or a resume may take.
PAUSE_SECONDS = 20.0
#: Before a pause, for writing the variables of contexts. Others are kept in memory only.
WRITE_SECONDS = 30.0
#: How long a start may hold its slot at most: a guest can delay its agent's answer without end.
_STARTING_SECONDS = 0.1
#: How long a program keeps its slot after its start: short programs end in this time.
_HELD_SECONDS = 0.01
#: How long a new sandbox keeps its slot while no program has started in it.
_FIRST_SECONDS = 0.01
#: New sandboxes per processor that may wait for their first program.
_NEW_AT_ONCE = 2
_MOST_WAITING, _PATIENCE = 1 << 16, 60.0


class Starts:
    """Starts programs and hands out sandboxes a few at a time, in the order of the requests.

    Fifty programs that start at once and share the processors all end last; one after another, half of them end in half
    the time, and the last no later. The first program of a new sandbox comes before the sandboxes of others. Tenants
    take turns: each has one slot per processor for programs and two for new sandboxes; one of each is left to others.
    There is one, in `service.state`. Belongs to the server's event loop.
    """

    def __init__(self) -> None:
        self._share = len(os.sched_getaffinity(0))
        self._programs = FairSemaphore(self._share + 1, _MOST_WAITING)
        self._sandboxes = FairSemaphore(_NEW_AT_ONCE * self._share + 1, _MOST_WAITING)

    @property
    def is_idle(self) -> bool:
        return self._programs.is_idle and self._sandboxes.is_idle

    async def run_slot(self, tenant_id: str) -> QueueSlot:
        await self._programs.acquire_async(_PATIENCE, tenant_id, self._share)
        return QueueSlot(lambda: self._programs.release(tenant_id), _STARTING_SECONDS)

    async def new_sandbox(self, tenant_id: str) -> QueueSlot:
        """Wait for the slot of a new sandbox; end it when the first program has started."""
        await self._sandboxes.acquire_async(_PATIENCE, tenant_id, _NEW_AT_ONCE * self._share)
        return QueueSlot(lambda: self._sandboxes.release(tenant_id), _FIRST_SECONDS)


class QueueSlot:
    """A slot that ends by itself after some time, or with `end`, which may be called twice."""

    def __init__(self, leave: Callable[[], None], seconds: float) -> None:
        self._leave: Callable[[], None] | None = leave
        self._timer = asyncio.get_running_loop().call_later(seconds, self.end)

    def end_soon(self) -> None:
        """Keep the slot only a moment longer, because the program has started."""
        self._timer.cancel()
        if self._leave is not None:
            self._timer = asyncio.get_running_loop().call_later(_HELD_SECONDS, self.end)

    def end(self) -> None:
        leave, self._leave = self._leave, None
        self._timer.cancel()
        if leave is not None:
            leave()


def starts_of(service: Service) -> Starts:
    return service.state.get(Starts, Starts)


@dataclass(slots=True)
class Command:
    config: dict[str, Any]
    tag: str | None
    process: AsyncProcess
    is_terminal: bool
    #: Held by the client that writes to its stdin.
    input_turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Box:
    """The state of E2B's protocol for one sandbox, in the `state` of its `SandboxEntry`."""

    def __init__(self, entry: SandboxEntry, asked: Any, service: Service, image: ImageChoice | None = None) -> None:
        #: The image of its template, and where commands start.
        self.image = image
        workdir = "/" if image is None else image.image.config.workdir
        self.directory = HOME if workdir == "/" else workdir
        #: Names of its only user.
        self.users = USERS if image is None else (*USERS, image.image.config.user.partition(":")[0])
        #: The client's request. A fork is made from the same one.
        self.entry, self.asked, self.service = entry, asked, service
        self.starts = starts_of(service)
        #: Called when its first command has started.
        self.on_first_start: Callable[[], None] = lambda: None
        self.template = asked.templateID or "base"
        self.token, self.traffic_token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self.auto_pause = asked.autoPause is True
        self.auto_resume = asked.autoResume is not None and asked.autoResume.enabled is True
        self.is_paused = False
        #: Held while it is paused or resumed: a resume that overtakes a pause would leave its programs stopped.
        self._turning = asyncio.Lock()
        #: Called when it is resumed for the first time.
        self.on_first_resume: Callable[[], object] = lambda: None
        #: The id of the template's build that it was made of; empty without one.
        self.build_id = ""
        self.files = GuestFiles(entry, service.search_path if image is None else lambda: _IMAGE_PATH)
        #: The running commands by pid.
        self.commands: dict[int, Command] = {}
        self.watchers: dict[str, Any] = {}

    def has_token(self, token: str | None) -> bool:
        return hmac.compare_digest((token or "").encode(), self.token.encode())

    def sign(self, path: str, operation: str, user: str, expiration: str | None) -> str:
        """The signature of a URL, as the SDKs' `get_signature` computes it.

        It joins its fields with colons. Only the path may contain one: the caller checks the others.
        """
        text = f"{path}:{operation}:{user}:{self.token}" + (f":{expiration}" if expiration else "")
        return "v1_" + b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")

    async def pause(self) -> None:
        """Stop everything but the file service; memory is kept.

        With `--state`, variables of contexts are written too.
        """
        async with self._turning:
            await self._pause()

    async def _pause(self) -> None:
        self.is_paused = True
        saved = sessions_of(self.entry)
        try:
            if saved is not None:
                await saved.write(WRITE_SECONDS)
            await self._wait_for(self.entry.sandbox.pause_programs(self.files.pids))
        except BaseException:
            self.is_paused = False
            if saved is not None:
                await saved.drop_copies()
            raise

    async def resume(self) -> None:
        """Resume the sandbox, unless another client has. Waits while it is paused and while its files are saved."""
        async with self._turning:
            if self.is_paused:
                async with saving_lock(self.entry):
                    await self._resume()

    async def _resume(self) -> None:
        await self._wait_for(self.entry.sandbox.resume_programs())
        self.is_paused = False
        on_first_resume, self.on_first_resume = self.on_first_resume, lambda: None
        on_first_resume()
        if (saved := sessions_of(self.entry)) is not None:
            await saved.drop_copies()

    async def _wait_for(self, work: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(PAUSE_SECONDS):
                await work
        except TimeoutError:
            raise HttpError(504, "cannot pause or resume the sandbox: timed out") from None

    def describe(self) -> dict[str, Any]:
        """The fields that the next server restores."""
        plain = {"asked": self.asked.model_dump(), "token": self.token, "traffic_token": self.traffic_token}
        plain["build"] = self.build_id
        return {**plain, "is_paused": self.is_paused, "is_kept_after_expiry": self.auto_pause or self.is_paused}

    def count_running(self) -> dict[str, int]:
        return {"processes": len(self.running_commands())}

    def add_command(self, command: Command) -> None:
        """Keep the command until it ends, whether or not a client follows it."""
        loop, pid = asyncio.get_running_loop(), command.process.pid

        def forget() -> None:
            if self.commands.get(pid) is command:
                del self.commands[pid]

        def on_end(_: object) -> None:  # in a thread of the sandbox's
            with suppress(RuntimeError):  # the server's event loop has ended
                loop.call_soon_threadsafe(forget)

        self.commands[pid] = command
        command.process.local.exit_future.add_done_callback(on_end)

    def running_commands(self) -> list[Command]:
        return [command for command in self.commands.values() if command.process.is_running]


def find_box(entry: SandboxEntry | None) -> Box | None:
    return None if entry is None else entry.state.find(Box)
