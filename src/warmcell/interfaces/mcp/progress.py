"""Progress while something runs: how long, of how long at most, and what it printed last."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from warmcell.core.door_text import in_guest_terms

SECONDS_BETWEEN = 0.5
_LONGEST_MESSAGE = 2000


class Progress:
    """Tells at a fixed pace, however much is printed: a flood of output is no flood of messages."""

    def __init__(self, context: Any, total: float | None) -> None:
        self._context = context
        self._total = total
        self._heard = ""
        self._began = time.monotonic()

    def hear(self, stream: str, text: str) -> None:
        self._heard = (self._heard + text)[-_LONGEST_MESSAGE:]

    async def __aenter__(self) -> Progress:
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):  # a client that has gone hears nothing
            await self._ticking

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(SECONDS_BETWEEN)
            message, self._heard = self._heard, ""
            elapsed = round(time.monotonic() - self._began, 3)
            await self._context.session.report_progress(elapsed, self._total, in_guest_terms(message) or None)


def is_wanted(context: Any) -> bool:
    """Whether the client asked to be told."""
    meta = context.meta or {}
    return any(meta.get(name) is not None for name in ("progress_token", "progressToken"))
