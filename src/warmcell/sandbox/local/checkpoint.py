"""LocalCheckpoint: the image of a session and a copy of its files, from which sessions start as often as wanted."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, Self

from warmcell.core.errors import SandboxDestroyed, SessionEnded
from warmcell.sandbox.interface import SandboxDriver
from warmcell.sandbox.local.session_fork import begin_cage, check_fork, copy_session, resume_session, start_interpreter

if TYPE_CHECKING:
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
        self._next: asyncio.Task[tuple[BranchSandbox, LocalSession]] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def session(self, reseed: bool) -> tuple[BranchSandbox, LocalSession]:
        if self._is_closed:
            raise SandboxDestroyed("the checkpoint was closed")
        check_fork(self._template.context, self._language, reseed)
        making = asyncio.ensure_future(self._start(reseed))
        self._track(making)
        return await making

    def _track(self, task: asyncio.Task[object]) -> None:
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _start(self, reseed: bool) -> tuple[BranchSandbox, LocalSession]:
        preparing = self._take_next()
        is_late = preparing is not None and not preparing.done()
        prepared = None if preparing is None else await _finish(preparing)
        if prepared is not None:
            if is_late:  # sessions are taken faster than they are prepared
                self._prepare_next()
            with suppress(SessionEnded):  # while it waited
                return await self._resume(*prepared, reseed)
        return await self._resume(*await self._prepare(), reseed)

    async def _resume(
        self, branch: BranchSandbox, session: LocalSession, reseed: bool
    ) -> tuple[BranchSandbox, LocalSession]:
        try:
            await resume_session(branch, session, reseed)
        except BaseException:
            await branch.close()
            raise
        self._prepare_next()
        return branch, session

    async def _prepare(self) -> tuple[BranchSandbox, LocalSession]:
        """A sandbox with the files, and an interpreter that can read the image."""
        branch = await self._template.make_sibling()
        source, target = self._template.context.workspace, branch.context.workspace

        def copy_files() -> None:
            source.copy_to(target)
            target.begin()  # now, and not in a thread of its own

        try:
            begin_cage(branch)
            await self._template.context.on_disk(copy_files)
            return branch, await start_interpreter(branch, self._language, self._env, self._image)
        except BaseException:
            await branch.close()
            raise

    # ---- the branch of the next session ----

    def _prepare_next(self) -> None:
        if self._next is not None or self._is_closed:
            return
        self._next = asyncio.ensure_future(self._prepare())
        self._next.add_done_callback(self._keep_ready)

    def _keep_ready(self, prepared: asyncio.Task[tuple[BranchSandbox, LocalSession]]) -> None:
        """Not for ever: a checkpoint that is kept for later has no processes."""
        if prepared.cancelled() or prepared.exception() is not None or self._next is not prepared:
            return

        def end_unused() -> None:
            if self._next is prepared:
                self._next = None
                self._track(asyncio.ensure_future(_end(prepared)))

        self._patience = prepared.get_loop().call_later(READY_SECONDS, end_unused)

    def _take_next(self) -> asyncio.Task[tuple[BranchSandbox, LocalSession]] | None:
        preparing, self._next = self._next, None
        if self._patience is not None:
            self._patience.cancel()  # which would keep this branch in memory
        return None if preparing is None or not _is_in_reach(preparing) else preparing

    async def close(self) -> None:
        self._is_closed = True
        while self._under_way:
            await asyncio.wait(self._under_way)
        unused, self._next = self._next, None
        if unused is not None:
            await _end(unused)
        self._image.close()
        await self._template.close()


def _is_in_reach(task: asyncio.Task[object]) -> bool:
    """Not if it is of an event loop that has ended, or of the program that this one was forked from."""
    return task.done() or task.get_loop() is asyncio.get_running_loop()


async def _finish(
    preparing: asyncio.Task[tuple[BranchSandbox, LocalSession]],
) -> tuple[BranchSandbox, LocalSession] | None:
    """None if it could not be made: making another one then fails with the reason."""
    with suppress(Exception):
        branch, session = await preparing  # cancelling this cancels it
        if branch.live.current() is not None:
            return branch, session
        await branch.close()
    return None


async def _end(preparing: asyncio.Task[tuple[BranchSandbox, LocalSession]]) -> None:
    """Ends a branch that no session uses. One that could not be made has ended already."""
    if not _is_in_reach(preparing):
        return
    if not preparing.done():
        await asyncio.wait([preparing])
    if not preparing.cancelled() and preparing.exception() is None:
        await preparing.result()[0].close()


async def take_checkpoint(sandbox: BranchSandbox, session: LocalSession) -> LocalCheckpoint:
    from warmcell.sessions.image import SessionImage

    check_fork(sandbox.context, session.language, True)
    template = await sandbox.make_sibling()
    image = SessionImage(sandbox.context.limits.memory_mb << 20)  # the session's memory bounds its image
    try:
        await copy_session(sandbox.context, session, template.context, image)
        image.seal()
        return LocalCheckpoint(session, template, image)
    except BaseException:
        image.close()
        await template.close()
        raise
