"""Reload when a file changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

INTERVAL_SECONDS = 1.0


async def reload_on_change(path: str, reload: Callable[[], object]) -> None:
    """Call `reload` whenever the file was replaced or modified, until cancelled."""
    known = _identity(path)
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        if (found := _identity(path)) != known:
            known = found
            reload()


def _identity(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
