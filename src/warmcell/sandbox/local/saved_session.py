"""Sessions that outlast their sandbox: what a later program needs to start one again with its variables."""

from __future__ import annotations

import asyncio
from typing import Any

from warmcell.core.errors import InvalidRequest, SessionBusy, SessionTimeout
from warmcell.sandbox.local.context import SandboxContext
from warmcell.sandbox.local.live import LocalLive
from warmcell.sandbox.local.session import LocalSession
from warmcell.sessions.image import SessionImage


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
    try:
        async with asyncio.timeout(timeout):
            await session.interpreter.run(session.interpreter.picture(timeout, image, lambda: None))
        image.seal()
    except TimeoutError:
        image.close()
        raise SessionTimeout(timeout) from None
    except BaseException:
        image.close()
        raise
    plain = {"id": session.id, "language": session.language, "cwd": session.cwd, "env": dict(session.env)}
    return plain | {"cells": image.cells}, image


async def read_session(
    context: SandboxContext, live: LocalLive, plain: dict[str, Any], image: SessionImage
) -> LocalSession:
    """The session again, under its id. Its work directory is there already, and files in `/tmp` are not replaced."""
    image.cells = int(plain["cells"])
    await context.start()
    session = await live.start_session(plain["language"], plain["cwd"], plain["env"], image, str(plain["id"]))
    try:
        resume = session.interpreter.resumption(context.settings.timeout, reseed=False, keeps_files=True)
        await session.interpreter.run(resume)
    except BaseException:
        await session.close()
        raise
    return session
