"""What is told of the live side of a sandbox: cages, processes and sessions, when they come and go."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from warmcell.core import events
from warmcell.sessions.processes import LiveProcess

if TYPE_CHECKING:
    from warmcell.backends.process.live import LiveCage
    from warmcell.sandbox.session import AsyncSession


def tell_of_cage(subject: str, cage: LiveCage) -> None:
    """Now that it was made, and when it is gone."""

    def gone(ended: Future[Any]) -> None:
        if events.listeners:
            events.emit("live.gone", subject, {"reason": ended.result().reason})

    if events.listeners:
        events.emit("live.made", subject, {})
    cage.ended.add_done_callback(gone)


def tell_of_process(subject: str, process: LiveProcess) -> None:
    """Its command is not told: it may hold anything."""

    def ended(_: Future[Any]) -> None:
        if not events.listeners:
            return
        outcome = process.outcome
        fields = {
            "pid": process.pid,
            "exit_code": process.exit_code,
            "duration": round(process.duration, 6),
            "cpu_time": round(outcome.cpu_time, 6) if outcome else 0.0,
            "peak_memory_bytes": outcome.peak_memory if outcome else 0,
            "denials": len(process.program.denials),
        }
        events.emit("process.ended", subject, fields)

    if events.listeners:
        events.emit("process.started", subject, {"pid": process.pid})
    process.finished.add_done_callback(ended)


def tell_of_session(sandbox: str, session: AsyncSession) -> None:
    fields = {"sandbox": sandbox, "language": session.language}

    def gone() -> None:
        if events.listeners:
            events.emit("session.gone", session.id, fields)

    if events.listeners:
        events.emit("session.made", session.id, fields)
    session.when_closed(gone)
