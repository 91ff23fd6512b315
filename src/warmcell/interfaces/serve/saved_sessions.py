"""Keeps sessions over a restart of a server with `--state`: their variables are files below the state.

They are written when a sandbox is paused and when the server stops. The next server starts the interpreters again when
a client first asks for one of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from warmcell.core.errors import InvalidRequest, SandboxError
from warmcell.core.light import on_error
from warmcell.core.types import MIB
from warmcell.interfaces.serve.saved_state import SavedState
from warmcell.interfaces.serve.settings import SAVE_SECONDS
from warmcell.lifetime.descriptors import host_failure, is_shortage
from warmcell.lifetime.threads import in_thread
from warmcell.sandbox.session import AsyncSession

if TYPE_CHECKING:
    from warmcell.interfaces.serve.sandbox_registry import SandboxEntry

_log = logging.getLogger("warmcell.serve")
#: How many sandboxes write the variables of their sessions at the same time.
_AT_ONCE = 4

#: A running session: the id that clients know, the session, and the fields that its protocol saves.
LiveSession = tuple[str, AsyncSession, dict[str, Any]]


class SavedSessions:
    """The saved sessions of one sandbox. Each is described by a dictionary in the sandbox's record.

    `on_change` writes the record.
    """

    def __init__(self, state: SavedState, entry: SandboxEntry, on_change: Callable[[], object]) -> None:
        self._state, self._entry, self._on_change = state, entry, on_change
        #: Sessions of the previous server that have not been restarted.
        self.waiting: list[dict[str, Any]] = []
        #: Copies of sessions that run in this server.
        self.copies: list[dict[str, Any]] = []
        #: By id: why a session was not restored, or will not be.
        self.lost: dict[str, str] = {}
        self._restoring = asyncio.Lock()
        self.saving_files = asyncio.Lock()
        # Set by the protocol of the sandbox:
        self.list_live: Callable[[], Iterable[LiveSession]] = tuple
        self.adopt: Callable[[AsyncSession, dict[str, Any]], object] = lambda session, own: None

    def describe(self) -> dict[str, Any]:
        return {"sessions": [*self.waiting, *self.copies], "lost_sessions": self.lost}

    def load(self, document: dict[str, Any]) -> None:
        """Read what the previous server wrote. Raises `TypeError` or `ValueError` for a damaged record."""
        self.waiting = [dict(found) for found in document.get("sessions") or ()]
        self.lost = {str(key): str(value) for key, value in dict(document.get("lost_sessions") or {}).items()}

    def images(self) -> set[str]:
        return {str(found.get("image")) for found in (*self.waiting, *self.copies)}

    async def write(self, seconds: float) -> None:
        """Save the running sessions. Those that are not saved within `seconds` are named in `lost`."""
        if self.copies:  # the sandbox is paused: nothing has changed since
            return
        self.lost = {}
        room = max(1, self._entry.tenant.disk_mb) * MIB
        deadline = time.monotonic() + seconds
        for identity, session, own in self.list_live():
            try:
                plain, image = await self._entry.sandbox.write_session(
                    session, room, max(0.1, deadline - time.monotonic())
                )
                with closing(image):
                    room -= image.size
                    name = await in_thread(lambda image=image: self._state.keep_image(image))  # type: ignore[misc]
                self.copies.append({"plain": plain, "own": own, "image": name})
            except (SandboxError, OSError) as error:
                self.lost[identity] = str(error)

    async def drop_copies(self) -> None:
        """Remove the copies when the sessions continue: after a crash they would not match the files."""
        dropped, self.copies, self.lost = self.copies, [], {}
        if dropped:
            with on_error(lambda: setattr(self, "copies", dropped)):  # the record still names them
                self._on_change()
            await in_thread(lambda: self._remove(dropped))

    async def restore(self) -> None:
        """Restart the sessions of the previous server. Raises if the host is busy; the client may try again."""
        async with self._restoring:
            while self.waiting:
                found = self.waiting[0]
                try:
                    await self._start(found)
                except (SandboxError, OSError, KeyError, TypeError, ValueError) as error:
                    if getattr(error, "retryable", False):
                        raise
                    if isinstance(error, OSError) and is_shortage(error):
                        raise host_failure(error, "restore the session") from error
                    self._lose(found, error)
                self.waiting.remove(found)
                self._on_change()
                await in_thread(lambda found=found: self._remove([found]))  # type: ignore[misc]

    async def _start(self, found: dict[str, Any]) -> None:
        sandbox = self._entry.sandbox
        most = sandbox.limits.memory_mb * MIB
        image = await in_thread(lambda: self._state.load_image(found["image"], most), discard=lambda made: made.close())
        with closing(image):
            session = await sandbox.read_session(dict(found["plain"]), image)
        async with on_error(session.close):
            self.adopt(session, dict(found["own"]))

    def _lose(self, found: dict[str, Any], error: Exception) -> None:
        plain = found.get("plain")
        identity = str(plain.get("id") if isinstance(plain, dict) else None)
        self.lost[identity] = str(error) if isinstance(error, SandboxError) else f"its record is damaged ({error!r})"
        _log.warning("cannot restore session %s of sandbox %s: %s", identity, self._entry.id, self.lost[identity])

    def forget(self) -> None:
        """Remove all copies, because the sandbox is removed. Call in a thread."""
        if not self._state.is_closing:
            self._remove([*self.waiting, *self.copies])

    def _remove(self, dropped: Iterable[dict[str, Any]]) -> None:
        for found in dropped:
            try:
                self._state.remove_image(found.get("image"))
            except (InvalidRequest, OSError) as error:
                _log.warning("cannot remove the variables of a session: %s", error)


def saving_lock(entry: SandboxEntry) -> asyncio.Lock:
    """The lock that is held while the files of the sandbox are saved, and while it is resumed."""
    saved = sessions_of(entry)
    return asyncio.Lock() if saved is None else saved.saving_files


def sessions_of(entry: SandboxEntry) -> SavedSessions | None:
    """The saved sessions; None without `--state`."""
    return entry.state.find(SavedSessions)


async def restore_sessions(entry: SandboxEntry) -> None:
    if (saved := sessions_of(entry)) is not None and saved.waiting:
        await saved.restore()


def reason_of_loss(entry: SandboxEntry, session: str) -> str:
    """The end of the message that a session was not found; empty if it never existed."""
    saved = sessions_of(entry)
    reason = None if saved is None else saved.lost.get(session)
    return "" if reason is None else f": it was lost when the server was restarted: {reason}"


async def write_all(entries: Iterable[SandboxEntry]) -> None:
    """Save all sessions when the server stops. What takes too long is lost."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def write(saved: SavedSessions) -> None:
        async with slots:
            await saved.write(SAVE_SECONDS)

    found = [saved for entry in entries if (saved := sessions_of(entry)) is not None]
    try:
        async with asyncio.timeout(SAVE_SECONDS):
            await asyncio.gather(*map(write, found))
    except TimeoutError:
        _log.error("the variables of some sessions could not be saved within %g s", SAVE_SECONDS)
