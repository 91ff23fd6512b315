"""Writing to the stdin of a process in a sandbox, one write at a time."""

from __future__ import annotations

import asyncio

from warmcell.core.errors import SessionBusy
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry
from warmcell.sandbox.processes import AsyncProcess


class PendingWrites(dict[int, "asyncio.Future[None]"]):
    """The write under way of each process, by pid. Kept in the state of the sandbox's entry."""


async def write_to_process(entry: SandboxEntry, process: AsyncProcess, data: bytes, *, wait: bool = False) -> None:
    """Write, and return when the process has read it all.

    While an earlier write is unread, a second one waits (`wait`) or raises `SessionBusy`: clients that hang up and come
    back cannot pile up data in the server's memory.
    """
    pending = entry.state.get(PendingWrites, PendingWrites)
    while process.pid in pending:
        if not wait:
            raise SessionBusy("the process has not yet read the previous write")
        await asyncio.wait([pending[process.pid]])
    writing = pending[process.pid] = asyncio.ensure_future(process.write(data))

    def finish(done: asyncio.Future[None]) -> None:
        del pending[process.pid]
        done.cancelled() or done.exception()  # retrieved here: the client may have gone

    writing.add_done_callback(finish)
    await asyncio.shield(writing)
