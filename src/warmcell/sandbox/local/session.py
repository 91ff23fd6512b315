"""LocalSession: an interpreter in the sandbox's live cage. Which languages have one, and how its worker is started."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import InvalidRequest, SandboxError, SessionEnded
from warmcell.lifetime.run import Run
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.interface import NO_CALLBACKS, CellCallbacks
from warmcell.sandbox.local.guests import language_for
from warmcell.sessions.cell_results import CellResult
from warmcell.sessions.exchange import NO_LISTENERS, Listener, Listeners, Worker
from warmcell.sessions.interpreter import Interpreter

if TYPE_CHECKING:
    from warmcell.sandbox.interface import CheckpointDriver, SandboxDriver
    from warmcell.sessions.image import SessionImage

_ATTEMPTS = 3

#: Forks a session, with or without new random numbers: a new sandbox, and the session in it.
ForkSession = Callable[["LocalSession", bool], Awaitable[tuple["SandboxDriver", "LocalSession"]]]

TakeCheckpoint = Callable[["LocalSession"], Awaitable["CheckpointDriver"]]
#: Finds the sandbox's live cage and returns the blocking call that starts the worker in it.
Starter = Callable[[], Awaitable[Callable[..., Worker]]]


def session_language(backend: str, language: str) -> str:
    """The language's own name. `InvalidRequest` if it has no sessions."""
    from warmcell.backends.process.session_worker import LANGUAGES

    name = str(language_for(backend, language))
    if name not in LANGUAGES:
        raise InvalidRequest(f"{name} has no sessions", field="language", hint=f"one of {', '.join(LANGUAGES)}")
    return name


def session_languages(guest: object) -> tuple[str, ...]:
    """The languages in which this guest has sessions, if the host has them.

    Without TypeScript, which callers ask for by name: the Node that runs it may be at a path that the cage hides.
    """
    if not getattr(guest, "has_live_cage", False):
        return ()
    if getattr(guest, "has_image", False):
        return tuple(guest.image_session_languages)  # type: ignore[attr-defined]
    from warmcell.backends.process.session_worker import LANGUAGES

    return tuple(name for name in LANGUAGES if name != "typescript")


async def start_in_cage(starter: Starter, image: SessionImage | None) -> Worker:
    """Starts a worker. Tries again in a new cage if the old one ended just now because it was idle."""
    from warmcell.backends.process.started_programs import IDLE

    for attempt in range(_ATTEMPTS):
        start = await starter()
        try:
            return await in_thread(partial(start, image), discard=lambda worker: worker.close())
        except SessionEnded as error:
            if attempt == _ATTEMPTS - 1 or error.reason != IDLE:
                raise
    raise AssertionError("unreachable")


class LocalSession:
    """Calls are served in turn."""

    def __init__(
        self,
        language: str,
        cwd: str | None,
        env: Mapping[str, str],
        starter: Starter,
        worker: Worker,
        max_output_bytes: int,
        fork: ForkSession,
        take_checkpoint: TakeCheckpoint,
        cells: int,
        check_cage: Callable[[], None],
    ) -> None:
        #: What it was started with; None: the work directory.
        self.language, self.cwd, self.env = language, cwd, env
        self._starter, self._fork, self._take_checkpoint = starter, fork, take_checkpoint
        self._check_cage = check_cage
        self.interpreter = Interpreter(worker, max_output_bytes, cells)

    @property
    def id(self) -> str:
        return self.interpreter.id

    @property
    def is_closed(self) -> bool:
        return self.interpreter.is_closed

    async def run(self, code: str, timeout: float, callbacks: CellCallbacks) -> CellResult:
        self._check_cage()
        listeners = _listeners(callbacks, partial(_on_loop, asyncio.get_running_loop()))
        return await self.interpreter.run_cell(code, timeout, listeners)

    def run_blocking(self, code: str, timeout: float, callbacks: CellCallbacks) -> CellResult:
        """In the calling thread: a round trip costs little more than a pipe's."""
        self._check_cage()
        listeners = _listeners(callbacks, _in_this_thread)
        return self.interpreter.run_cell_blocking(code, timeout, listeners)

    async def variables(self, timeout: float) -> dict[str, str]:
        return await self.interpreter.run(self.interpreter.look(timeout))

    def variables_blocking(self, timeout: float) -> dict[str, str]:
        return self.interpreter.run_blocking(self.interpreter.look(timeout))

    async def interrupt(self) -> bool:
        return self.interpreter.interrupt()

    async def restart(self) -> None:
        self.interpreter.check_open()
        await in_thread(lambda: self.interpreter.end_worker(SessionEnded("it was restarted")))
        for attempt in range(_ATTEMPTS):
            start = await self._starter()
            try:
                await self.interpreter.run(self.interpreter.renewal(start))
                return
            except SessionEnded:  # its cage did, perhaps for what the last worker had done; or the session was closed
                self.interpreter.check_open()
                if attempt == _ATTEMPTS - 1:
                    raise

    async def fork(self, reseed: bool) -> tuple[SandboxDriver, LocalSession]:
        return await self._fork(self, reseed)

    async def checkpoint(self) -> CheckpointDriver:
        return await self._take_checkpoint(self)

    async def close(self) -> None:
        await in_thread(self.interpreter.close)

    async def end(self, error: SandboxError) -> None:
        """`close` with the error that later calls raise."""
        await in_thread(lambda: self.interpreter.close(error))


def _listeners(callbacks: CellCallbacks, listener: Callable[[Callable[[Any], object]], Listener]) -> Listeners:
    if callbacks is NO_CALLBACKS:
        return NO_LISTENERS
    calls = {name: getattr(callbacks, name) for name in CellCallbacks.__slots__}
    return Listeners(**{name: None if call is None else listener(call) for name, call in calls.items()})


def _in_this_thread(callback: Callable[[Any], object]) -> Listener:
    return lambda value, run: callback(value)


def _on_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[Any], object]) -> Listener:
    """Has the event loop call the callback and await it; cancelling the run cancels that."""

    async def visit(value: Any) -> object:
        answer = callback(value)
        return await answer if inspect.isawaitable(answer) else answer

    def call(value: Any, run: Run) -> object:
        answer = asyncio.run_coroutine_threadsafe(visit(value), loop)
        with run.on_cancel(answer.cancel):
            return answer.result()

    return call
