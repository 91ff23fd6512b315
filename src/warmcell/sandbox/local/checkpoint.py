"""LocalCheckpoint: the image of a session and a copy of its files, from which sessions start as often as wanted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, Self

from warmcell.core.errors import SandboxDestroyed
from warmcell.sandbox.interface import SandboxDriver
from warmcell.sandbox.local.session_fork import begin_cage, check_fork, copy_session, start_branch

if TYPE_CHECKING:
    from warmcell.sandbox.local.context import SandboxContext
    from warmcell.sandbox.local.live import LocalLive
    from warmcell.sandbox.local.session import LocalSession
    from warmcell.sessions.image import SessionImage


class BranchSandbox(SandboxDriver, Protocol):
    """A sandbox on this host."""

    @property
    def context(self) -> SandboxContext: ...
    @property
    def live(self) -> LocalLive: ...
    async def make_sibling(self) -> Self: ...


class LocalCheckpoint:
    """`template` is a sandbox that has the files and settings, and in which nothing ever runs. It ends with this."""

    def __init__(self, session: LocalSession, template: BranchSandbox, image: SessionImage) -> None:
        self._language, self._env = session.language, session.env
        self._template, self._image = template, image
        #: Branches that are being made: the image stays open until they have it.
        self._starting: set[asyncio.Task[object]] = set()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def session(self, reseed: bool) -> tuple[BranchSandbox, LocalSession]:
        if self._is_closed:
            raise SandboxDestroyed("the checkpoint was closed")
        making = asyncio.ensure_future(self._start(reseed))
        self._starting.add(making)
        making.add_done_callback(self._starting.discard)
        return await making

    async def _start(self, reseed: bool) -> tuple[BranchSandbox, LocalSession]:
        check_fork(self._template.context, self._language, reseed)
        branch = await self._template.make_sibling()
        source, target = self._template.context.workspace, branch.context.workspace
        try:
            begin_cage(branch)
            await self._template.context.on_disk(lambda: source.copy_to(target))
            return branch, await start_branch(branch, self._language, self._env, self._image, reseed)
        except BaseException:
            await branch.close()
            raise

    async def close(self) -> None:
        self._is_closed = True
        while self._starting:
            await asyncio.wait(self._starting)
        self._image.close()
        await self._template.close()


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
