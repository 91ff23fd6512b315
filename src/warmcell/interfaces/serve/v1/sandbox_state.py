"""What `/v1` keeps with each sandbox."""

from __future__ import annotations

import asyncio
import dataclasses

from warmcell.interfaces.serve.background_jobs import BackgroundJobs
from warmcell.interfaces.serve.sandbox_registry import SandboxEntry
from warmcell.interfaces.serve.saved_sessions import sessions_of
from warmcell.sandbox.ports import AsyncExposedPort
from warmcell.sandbox.session import AsyncSession

#: Cells of one session whose events are kept.
MAX_CELLS = 8


class SessionEntry:
    """A session, its last cells, and the future that a cell waiting in `input()` waits for."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session
        self.question: asyncio.Future[str] | None = None
        self.cells = BackgroundJobs(MAX_CELLS)

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
    """With `--state`: the next server finds the sessions again."""
    if (saved := sessions_of(entry)) is not None:
        saved.list_live = lambda: [(found.session.id, found.session, {}) for found in state_of(entry).sessions.values()]
        saved.adopt = lambda session, own: state_of(entry).add_session(session)


def state_of(entry: SandboxEntry) -> SandboxState:
    return entry.state.get(SandboxState, SandboxState)
