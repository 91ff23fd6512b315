"""Forking a session: a new sandbox with a copy of the files, and in it an interpreter that continues from an image."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from warmcell.core.errors import InvalidRequest
from warmcell.sandbox.local.context import SandboxContext
from warmcell.sandbox.local.live import LocalLive
from warmcell.sandbox.local.session import LocalSession

if TYPE_CHECKING:
    from warmcell.sessions.image import SessionImage


class Branch(Protocol):
    """The new sandbox."""

    @property
    def context(self) -> SandboxContext: ...
    @property
    def live(self) -> LocalLive: ...
    async def close(self) -> None: ...


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


async def fork_session(context: SandboxContext, session: LocalSession, branch: Branch, reseed: bool) -> LocalSession:
    """Fills an empty sandbox from the session's. Closes it if that fails."""
    from warmcell.sessions.image import SessionImage

    image = SessionImage(context.limits.memory_mb << 20)  # the session's memory bounds its image
    try:
        begin_cage(branch)
        await copy_session(context, session, branch.context, image)
        started = await start_interpreter(branch, session.language, session.env, image)
        await resume_session(branch, started, reseed)
        return started
    except BaseException:
        await branch.close()
        raise
    finally:
        image.close()


def begin_cage(branch: Branch) -> None:
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


async def start_interpreter(branch: Branch, language: str, env: Mapping[str, str], image: SessionImage) -> LocalSession:
    """A session in the new sandbox, which has its files already. `resume_session` has it read the image."""
    await branch.context.start()
    return await branch.live.start_session(language, None, env, image)


async def resume_session(branch: Branch, session: LocalSession, reseed: bool) -> None:
    await session.interpreter.run(session.interpreter.resumption(branch.context.settings.timeout, reseed))
