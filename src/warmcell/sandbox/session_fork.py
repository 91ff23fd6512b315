"""Forking a session: a new sandbox with a copy of the files, and in it an interpreter that goes on from the image."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from warmcell.core.errors import InvalidRequest
from warmcell.workspace.mount_points import WORK

if TYPE_CHECKING:
    from warmcell.sandbox.asynchronous import AsyncSandbox
    from warmcell.sandbox.session import AsyncSession
    from warmcell.sessions.image import SessionImage


async def branch_of(session: AsyncSession, reseed: bool) -> AsyncSession:
    from warmcell.sessions.image import SessionImage

    sandbox = session.sandbox
    _check(session, sandbox, reseed)
    child = await sandbox._sibling()
    image = SessionImage(_most_bytes(sandbox))
    try:
        # The cage is made while the image is written. Who needs it is told whether it could be.
        cage = asyncio.ensure_future(child._operations.run(child._live_side().cage()))
        cage.add_done_callback(lambda made: made.cancelled() or made.exception())
        await _take_picture(session, child, image)
        return await _grown(session, child, image, reseed)
    except BaseException:
        await child.destroy()
        raise
    finally:
        image.close()


async def _take_picture(session: AsyncSession, child: AsyncSandbox, image: SessionImage) -> None:
    """The session's turn is held while its files are copied, so that they belong to its variables."""
    source = session.sandbox._workspace
    await session._interpreter.run(
        session._interpreter.picture(session._timeout, image, lambda: source.copy_to(child._workspace))
    )


async def _grown(session: AsyncSession, child: AsyncSandbox, image: SessionImage, reseed: bool) -> AsyncSession:
    await child.start()
    branch = await child._open_session(session.language, None, session._env, image)
    await branch._interpreter.run(branch._interpreter.resumption(session._timeout, reseed))
    return branch


def _check(session: AsyncSession, sandbox: AsyncSandbox, reseed: bool) -> None:
    if not isinstance(reseed, bool):
        raise InvalidRequest(f"must be true or false, not {type(reseed).__name__}", field="reseed")
    if session.language != "python":
        raise InvalidRequest(f"sessions in {session.language} cannot be forked", hint="use a session in python")
    if not sandbox._settings["forkable"]:
        raise InvalidRequest("this sandbox's sessions cannot be forked", hint="make it with Sandbox(forkable=True)")


def check_forkable(forkable: bool, work_path: str) -> bool:
    if not isinstance(forkable, bool):
        raise InvalidRequest(f"must be true or false, not {type(forkable).__name__}", field="forkable")
    if forkable and work_path != WORK:
        reason = "a branch has a copy of the work directory, which cannot be at the same path of the host"
        raise InvalidRequest(reason, field="forkable", hint=f"leave work_path at {WORK!r}")
    return forkable


def _most_bytes(sandbox: AsyncSandbox) -> int:
    """What could not be in the session's memory need not be in its image."""
    return sandbox.limits.memory_mb << 20
