"""Copies of a session: forks, checkpoints, and images from which a later program starts it again.

A fork is a new sandbox with a copy of the files, and in it an interpreter that continues from an image.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, Self

from warmcell.core.errors import InvalidRequest, SandboxDestroyed, SessionBusy, SessionEnded, SessionTimeout
from warmcell.core.light import on_error
from warmcell.lifetime.cancellable import SharedClose
from warmcell.sandbox.interface import SandboxDriver
from warmcell.sandbox.local.context import SandboxContext
from warmcell.sandbox.local.live import LocalLive
from warmcell.sandbox.local.session import LocalSession
from warmcell.sessions.image import SessionImage

#: For how long the sandbox of the next session is kept ready.
READY_SECONDS = 10.0


class BranchSandbox(SandboxDriver, Protocol):
    """A sandbox on this host."""

    @property
    def context(self) -> SandboxContext: ...
    @property
    def live(self) -> LocalLive: ...
    async def make_sibling(self) -> Self: ...


#: A sandbox, and the session in it.
Branch = tuple[BranchSandbox, LocalSession]


def check_fork(context: SandboxContext, language: str, reseed: object) -> None:
    if not isinstance(reseed, bool):
        raise InvalidRequest(f"must be true or false, not {type(reseed).__name__}", field="reseed")
    if language != "python":
        raise InvalidRequest(f"sessions in {language} cannot be forked", hint="use a session in python")
    if getattr(context.guest, "has_image", False):
        reason = "a session in an image cannot be forked: the branch would lack its changes to the image"
        raise InvalidRequest(reason, hint="use a sandbox without an image")
    if not context.settings.forkable:
        raise InvalidRequest("sessions of this sandbox cannot be forked", hint="make it with Sandbox(forkable=True)")


async def fork_session(sandbox: BranchSandbox, session: LocalSession, reseed: bool) -> Branch:
    context = sandbox.context
    check_fork(context, session.language, reseed)
    branch = await sandbox.make_sibling()
    async with on_error(branch.close):
        with SessionImage(context.limits.memory_mb << 20) as image:  # the session's memory bounds its image
            begin_cage(branch)
            await copy_session(context, session, branch.context, image)
            started = await start_interpreter(branch, session.language, session.env, image)
            await resume_session(branch, started, reseed)
            return branch, started


def begin_cage(branch: BranchSandbox) -> None:
    """The cage is made while files are copied. `start_session` raises if it cannot be made."""
    cage = asyncio.ensure_future(branch.context.operations.run(branch.live.cage()))
    cage.add_done_callback(lambda made: made.cancelled() or made.exception())


async def copy_session(
    context: SandboxContext, session: LocalSession, target: SandboxContext, image: SessionImage
) -> None:
    """Fills the image and the other work directory. No cell runs meanwhile, so that files match the variables."""
    timeout, interpreter = context.settings.timeout, session.interpreter
    copy_files = partial(context.workspace.copy_to, target.workspace)
    await interpreter.run(interpreter.picture(timeout, image, copy_files))


async def start_interpreter(
    branch: BranchSandbox, language: str, env: Mapping[str, str], image: SessionImage
) -> LocalSession:
    """A session in the new sandbox, which has its files already. `resume_session` has it read the image."""
    await branch.context.start()
    return await branch.live.start_session(language, None, env, image)


async def resume_session(branch: BranchSandbox, session: LocalSession, reseed: bool) -> None:
    await session.interpreter.run(session.interpreter.resumption(branch.context.settings.timeout, reseed))


async def write_session(
    context: SandboxContext, session: LocalSession, max_bytes: int, timeout: float
) -> tuple[dict[str, Any], SessionImage]:
    """The image of an idle session, and what it was started with as JSON. Raises if it cannot be copied."""
    if session.language != "python":
        raise InvalidRequest(f"variables of sessions in {session.language} cannot be saved")
    if getattr(context.guest, "has_image", False):
        raise InvalidRequest("sessions in an image cannot be saved: its changes to the image are lost")
    if session.interpreter.is_busy:
        raise SessionBusy("a cell was running")
    image = SessionImage(min(max_bytes, context.limits.memory_mb << 20))
    with on_error(image.close):
        try:
            async with asyncio.timeout(timeout):
                await session.interpreter.run(session.interpreter.picture(timeout, image, lambda: None))
            image.seal()
        except TimeoutError:
            raise SessionTimeout(timeout) from None
    plain = {"id": session.id, "language": session.language, "cwd": session.cwd, "env": dict(session.env)}
    return plain | {"cells": image.cells}, image


async def read_session(
    context: SandboxContext, live: LocalLive, plain: dict[str, Any], image: SessionImage
) -> LocalSession:
    """The session again, under its id. Its work directory is there already, and files in `/tmp` are not replaced."""
    image.cells = int(plain["cells"])
    await context.start()
    session = await live.start_session(plain["language"], plain["cwd"], plain["env"], image, str(plain["id"]))
    async with on_error(session.close):
        resume = session.interpreter.resumption(context.settings.timeout, reseed=False, keeps_files=True)
        await session.interpreter.run(resume)
    return session


class LocalCheckpoint:
    """`template` is a sandbox that has the files and settings, and in which nothing ever runs. It ends with this.

    While the caller uses one session, the sandbox of the next one is prepared, with an interpreter that has not read
    the image yet.
    """

    def __init__(self, session: LocalSession, template: BranchSandbox, image: SessionImage) -> None:
        self._language, self._env = session.language, session.env
        self._template, self._image = template, image
        #: Branches that are being made or ended: the image stays open until then.
        self._under_way: set[asyncio.Task[object]] = set()
        #: The branch of the next session.
        self._next: asyncio.Task[Branch] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._closing = SharedClose(self._close)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def session(self, reseed: bool) -> Branch:
        if self._is_closed:
            raise SandboxDestroyed("the checkpoint was closed")
        check_fork(self._template.context, self._language, reseed)
        making = asyncio.ensure_future(self._start(reseed))
        self._track(making)
        async with on_error(lambda: _end(making)):
            return await making

    def _track(self, task: asyncio.Task[object]) -> None:
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _start(self, reseed: bool) -> Branch:
        preparing = self._take_next()
        is_late = preparing is not None and not preparing.done()
        prepared = None if preparing is None else await _finish(preparing)
        if prepared is not None:
            if is_late:  # sessions are taken faster than they are prepared
                self._prepare_next()
            with suppress(SessionEnded):  # while it waited
                return await self._resume(*prepared, reseed)
        return await self._resume(*await self._prepare(), reseed)

    async def _resume(self, branch: BranchSandbox, session: LocalSession, reseed: bool) -> Branch:
        async with on_error(branch.close):
            await resume_session(branch, session, reseed)
        self._prepare_next()
        return branch, session

    async def _prepare(self) -> Branch:
        """A sandbox with the files, and an interpreter that can read the image."""
        branch = await self._template.make_sibling()
        source, target = self._template.context.workspace, branch.context.workspace

        def copy_files() -> None:
            source.copy_to(target)
            target.begin()  # now, and not in a thread of its own

        async with on_error(branch.close):
            begin_cage(branch)
            await self._template.context.on_disk(copy_files)
            return branch, await start_interpreter(branch, self._language, self._env, self._image)

    # ---- the branch of the next session ----

    def _prepare_next(self) -> None:
        if self._next is not None or self._is_closed:
            return
        self._next = asyncio.ensure_future(self._prepare())
        self._next.add_done_callback(self._keep_ready)

    def _keep_ready(self, prepared: asyncio.Task[Branch]) -> None:
        """Ends the prepared branch after a while: an unused checkpoint must not keep processes."""
        if prepared.cancelled() or prepared.exception() is not None or self._next is not prepared:
            return

        def end_unused() -> None:
            if self._next is prepared:
                self._next = None
                self._track(asyncio.ensure_future(_end(prepared)))

        self._patience = prepared.get_loop().call_later(READY_SECONDS, end_unused)

    def _take_next(self) -> asyncio.Task[Branch] | None:
        preparing, self._next = self._next, None
        if self._patience is not None:
            self._patience.cancel()  # which would keep this branch in memory
        return None if preparing is None or not _is_in_reach(preparing) else preparing

    async def close(self) -> None:
        self._is_closed = True
        await self._closing.run()

    async def _close(self) -> None:
        while self._under_way:
            await asyncio.wait(self._under_way)
        unused, self._next = self._next, None
        if unused is not None:
            await _end(unused)
        self._image.close()
        await self._template.close()


def _is_in_reach(task: asyncio.Task[object]) -> bool:
    """False if its event loop has ended or belongs to the program that this one was forked from."""
    return task.done() or task.get_loop() is asyncio.get_running_loop()


async def _finish(preparing: asyncio.Task[Branch]) -> Branch | None:
    """None if it could not be made: making another one then fails with the reason."""
    with suppress(Exception):
        async with on_error(lambda: _end(preparing)):
            branch, session = await preparing  # cancelling this cancels it
        if branch.live.current() is not None:
            return branch, session
        await branch.close()
    return None


async def _end(preparing: asyncio.Task[Branch]) -> None:
    """Ends a branch that no session uses. One that could not be made has ended already."""
    if not _is_in_reach(preparing):
        return
    if not preparing.done():
        await asyncio.wait([preparing])
    if not preparing.cancelled() and preparing.exception() is None:
        await preparing.result()[0].close()


async def take_checkpoint(sandbox: BranchSandbox, session: LocalSession) -> LocalCheckpoint:
    check_fork(sandbox.context, session.language, True)
    template = await sandbox.make_sibling()
    async with on_error(template.close):
        image = SessionImage(sandbox.context.limits.memory_mb << 20)  # the session's memory bounds its image
        with on_error(image.close):
            await copy_session(sandbox.context, session, template.context, image)
            image.seal()
            return LocalCheckpoint(session, template, image)
