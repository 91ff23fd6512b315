"""The state of `/v1` that belongs to one sandbox."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from warmcell.interfaces.serve.background_jobs import BackgroundJobs
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry
from warmcell.interfaces.serve.saved_sessions import sessions_of
from warmcell.sandbox.ports import AsyncExposedPort
from warmcell.sandbox.session import AsyncSession

#: How many cells of one session have their events kept.
MAX_CELLS = 8


class SessionEntry:
    """A session, its last cells, and the future that a cell waiting in `input()` waits for."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session
        self.question: asyncio.Future[str | None] | None = None
        self.cells = BackgroundJobs(MAX_CELLS)
        #: Cells that wait for a slot in the server's queue, in order; cells that hold one.
        self._waiting: list[asyncio.Timeout] = []
        self._started = 0

    @asynccontextmanager
    async def cell_slot(self, slot: AbstractAsyncContextManager[object]) -> AsyncIterator[bool]:
        """Hold `slot` for a cell. Yields False if the cell was interrupted while it waited."""
        waiting = asyncio.timeout(None)
        async with AsyncExitStack() as stack:
            self._waiting.append(waiting)
            try:
                async with waiting:
                    await stack.enter_async_context(slot)
            except TimeoutError:
                if not waiting.expired():
                    raise
            finally:
                self._waiting.remove(waiting)
            is_granted = waiting.when() is None  # an interrupt may come after the slot was granted, and before we run
            self._started += is_granted
            try:
                yield is_granted
            finally:
                self._started -= is_granted

    async def interrupt(self) -> bool:
        """Interrupt the running cell, or the first that waits. Return whether there was one."""
        first = next((cell for cell in self._waiting if cell.when() is None), None)
        if self._started or first is None:
            return await self.session.interrupt()
        first.reschedule(asyncio.get_running_loop().time())
        return True

    def to_dict(self) -> dict[str, str]:
        return {"id": self.session.id, "language": self.session.language}


@dataclasses.dataclass
class SandboxState:
    """`sessions_starting`, `watches` and `snapshots` are counts."""

    sessions: dict[str, SessionEntry] = dataclasses.field(default_factory=dict)
    ports: dict[int, AsyncExposedPort] = dataclasses.field(default_factory=dict)
    sessions_starting: int = 0
    watches: int = 0
    snapshots: int = 0

    def add_session(self, session: AsyncSession) -> SessionEntry:
        made = self.sessions[session.id] = SessionEntry(session)
        return made


def keep_sessions(entry: SandboxEntry) -> None:
    """With `--state`, let the next server restore the sessions."""
    if (saved := sessions_of(entry)) is not None:
        saved.list_live = lambda: [(found.session.id, found.session, {}) for found in state_of(entry).sessions.values()]
        saved.adopt = lambda session, own: state_of(entry).add_session(session)


def state_of(entry: SandboxEntry) -> SandboxState:
    return entry.state.get(SandboxState, SandboxState)
